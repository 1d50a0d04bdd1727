"""Holds the kernels of tensor cores to `refopt.cpu.matmul`, bit for bit, on a GPU, and times them beside PyTorch's.

    python -m benchmarks.products [--out FILE]

``bits`` has products of matrices of normal numbers, of wide exponents, and of sums that cancel, each with either
operand transposed, by copies that overlap and by plain ones: elements, and how many differ. ``edges`` has what is rare:
sums of subnormal size, overflow, NaN, and any patterns of bits. ``iterations`` has five iterations of Muon.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks.record import by_parts
from refopt import cpu, gpu
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.muon import COEFFICIENTS, orthogonalized
from refopt.gpu import matmul
from refopt.gpu.cuda import address
from refopt.gpu.muon.iterations import launches, stages
from refopt.gpu.muon.matrices import XS, Matrix, Workspace
from refopt.gpu.products import padded

DTYPES = "bfloat16", "float16"
SIZES = [(1, 1, 1), (1, 300, 7), (17, 33, 5), (64, 64, 64), (70, 130, 95), (72, 136, 104), (300, 500, 700),
         (304, 504, 704), (512, 512, 512)]
MATRICES = (1, 1), (1, 40), (17, 33), (33, 17), (64, 200), (200, 64), (256, 256), (512, 512)
TIMED = 512, 1024, 2048
REPEATS = 7


class Products:
    """Products on a device."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine

    def put(self, x: np.ndarray) -> Any:
        return self.machine.to_device(np.ascontiguousarray(x).view(np.uint16).reshape(-1))

    def launch(self, a: np.ndarray, b: np.ndarray, of: tuple[bool, bool] = (False, False), plain: bool = False) -> Any:
        """A launch and its result; ``of`` says which operands are stored transposed."""
        (m, k), n = a.shape, b.shape[1]
        operands = [self.put(x.T if transposed else x) for x, transposed in zip((a, b), of, strict=True)]
        out = self.machine.to_device(np.full(m * n, np.nan, np.float32))
        made = matmul.launch(*operands, out, (m, n, k), a.dtype.name, *of)
        if plain:
            kernel = matmul.kernel(a.dtype.name, *of, "float32", False)
            made = made._replace(kernel=kernel, args=(*operands, *made.args[2:]))
        return made, out

    def differing(self, a: np.ndarray, b: np.ndarray, *how: Any, expected: np.ndarray | None = None) -> int:
        """Elements whose bits are not those of NumPy's form."""
        made, out = self.launch(a, b, *how)
        made()
        self.machine.synchronize()
        got = out.copy_to_host().view(np.uint32)
        return int((got != (cpu.matmul(a, b) if expected is None else expected).view(np.uint32).reshape(-1)).sum())


def drawn(what: str, dtype: Any, m: int, n: int, k: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two matrices of a kind."""
    spread = {"normal": 0, "wide": 8 if dtype.name == "bfloat16" else 4, "cancelling": 2}[what]
    numbers = (rng.standard_normal(s) * 2.0 ** rng.integers(-spread, spread + 1, s) for s in ((m, k), (k, n)))
    a, b = (x.astype(dtype) for x in numbers)
    half = k // 2
    if what == "cancelling" and half:
        a[:, half : 2 * half], b[half : 2 * half] = -a[:, :half], b[:half]
        b[k - 1] = (b[k - 1].astype(np.float32) * (1 + 2.0**-7)).astype(dtype)
    return a, b


def bits(products: Products) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for name, what in product(DTYPES, ("normal", "wide", "cancelling")):
        elements = differing = 0
        for m, n, k in SIZES:
            a, b = drawn(what, numpy_dtype(name), m, n, k, rng)
            expected = cpu.matmul(a, b)
            for how in product(product((False, True), repeat=2), (False, True)):
                differing += products.differing(a, b, *how, expected=expected)
                elements += expected.size
        yield {"dtype": name, "data": what, "elements": elements, "differing": differing}


def edges(products: Products) -> Iterator[dict[str, Any]]:
    rng, dtype = np.random.default_rng(1), numpy_dtype("bfloat16")
    small = [rng.standard_normal(s) * 2.0**-66 for s in ((512, 16), (16, 512))]
    full = lambda x: np.full((64, 2), x)  # noqa: E731
    cases = {
        "sums below 2**-126": small, "sums near 2**-138": [x * 2.0**-3 for x in small],
        "sums near 2**-150": [x * 2.0**-9 for x in small],
        "subnormal factors": [rng.standard_normal((512, 64)) * 2.0**-128, rng.standard_normal((64, 512)) * 2.0**100],
        "products beyond 2**128 that cancel": [full(2.0**80) * [1, -1], full(2.0**80).T],
        "sums that just reach 2**128": [rng.choice([1.0, 1.5, 1.99], s) * 2.0**e for s, e in (
            ((256, 16), 61), ((16, 256), 62))],
    }
    held = {name: [x.astype(dtype) for x in sides] for name, sides in cases.items()}
    for name in DTYPES:
        held[f"any patterns of {name}"] = [rng.integers(0, 2**16, s).astype(np.uint16).view(numpy_dtype(name))
                                           for s in ((512, 16), (16, 512))]
    for name, (a, b) in held.items():
        yield {"case": name, "elements": a.shape[0] * b.shape[1], "differing": products.differing(a, b)}


def iterations(products: Products) -> Iterator[dict[str, Any]]:
    """Five iterations of all matrices, by the launches of Muon."""
    rng, machine, triples = np.random.default_rng(2), products.machine, np.array([COEFFICIENTS] * 5, np.float32)
    matrices = [Matrix(i, 0, *shape, shape[1], 1, *shape, shape[0] <= shape[1]) for i, shape in enumerate(MATRICES)]
    for name in DTYPES:
        work = Workspace(machine, matrices, name, np.float32, [False] * len(matrices))
        every, last = stages(triples, None)
        dtype = numpy_dtype(name)

        def x_of(memory: np.ndarray, place: str, work: Workspace = work) -> Iterator[np.ndarray]:
            """The matrices at one of x's places."""
            for i, m in enumerate(matrices):
                rows = memory[(work.places[place, i] - address(work.memory)) // 2 :][: m.outer * padded(m.inner)]
                yield rows.reshape(m.outer, -1)[:, : m.inner]

        memory = work.memory.copy_to_host()
        for x in x_of(memory, XS[0]):
            numbers = rng.standard_normal(x.shape)
            x[...] = (numbers / np.linalg.norm(numbers)).astype(dtype).view(np.uint16)
        work.memory.copy_to_device(memory)
        for launch in launches(machine, work, every, name):
            launch(0)
        machine.synchronize()
        for x, new in zip(x_of(memory, XS[0]), x_of(work.memory.copy_to_host(), last[False]), strict=True):
            differing = int((new != orthogonalized(x.view(dtype), triples).view(np.uint16)).sum())
            yield {"dtype": name, "shape": list(x.shape), "elements": x.size, "differing": differing}


def times(products: Products) -> Iterator[dict[str, Any]]:
    """Of square products of bf16, in ms: with the second operand as it is, and transposed, and PyTorch's."""
    rng = np.random.default_rng(3)
    for n in TIMED:
        a, b = (rng.standard_normal((n, n)).astype(numpy_dtype("bfloat16")) for _ in range(2))
        row: dict[str, Any] = {"size": n}
        for name, *how in (("overlapping", False, False), ("transposed", True, False), ("plain", False, True)):
            transposed, plain = how
            row[name] = _best(products.machine, products.launch(a, b, (False, transposed), plain)[0])
        try:
            import torch
        except ImportError:
            torch = None  # type: ignore[assignment]
        if torch is not None:
            x, y = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            row["torch"] = _best(torch.cuda, lambda x=x, y=y: x @ y)
        yield row


def _best(machine: Any, call: Callable[[], object], calls: int = 20) -> float:
    """Milliseconds of a call: of ``calls`` in a row, the best of several times."""
    found = []
    for _ in range(REPEATS):
        machine.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        machine.synchronize()
        found.append((time.perf_counter() - start) / calls * 1e3)
    return round(min(found), 4)


def main() -> None:
    """The command."""
    products = Products(gpu.device("gpu"))
    parts = {"bits": bits, "edges": edges, "iterations": iterations, "times": times}
    by_parts(__doc__, "products", {name: partial(rows, products) for name, rows in parts.items()})


if __name__ == "__main__":
    main()
