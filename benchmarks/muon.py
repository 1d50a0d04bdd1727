"""Times a step of merged Muon over the hidden matrices of two models on a GPU, beside PyTorch's, and compares its bits.

    python -m benchmarks.muon [--out FILE]

``bits`` has lists of matrices after some steps: elements of parameters and momentum, and how many differ from
`refopt.cpu.merged_muon`. ``rows`` has sampled rows of each of the three products of an iteration in the full models:
elements, and how many differ from `refopt.cpu.matmul`, given the product's inputs on the device. ``products`` has
milliseconds of each, by ``mma.sync`` and by ``wgmma``. ``steps`` has milliseconds of the device for a whole step, fp32
parameters and five iterations in bf16, those that the call takes the host, and the rate of the products, as if they
were computed in full: refopt's, of which symmetric ones are computed by half, as a plan and as `refopt.torch.Muon`;
`torch.optim.Muon`'s as its users have it, and as a CUDA graph; PyTorch's operations on stacks of all matrices of a
shape, as a CUDA graph, as they are and compiled by ``torch.compile``; and the same with QuACK's kernels for the
products, symmetric ones by half, where ``quack-kernels`` is installed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.measure import captured, device_ms, free, host_us
from benchmarks.peers import compiled
from benchmarks.record import by_parts
from refopt import cpu, gpu
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.muon import COEFFICIENTS
from refopt.gpu.muon import iterations
from refopt.gpu.muon.matrices import Matrix, Workspace
from refopt.gpu.products import Product

Shape = tuple[int, int]
MODELS: dict[str, list[Shape]] = {
    "BERT-large": [*[(1024, 1024)] * 4, (4096, 1024), (1024, 4096)] * 24,
    "GPT-2 XL": [(4800, 1600), (1600, 1600), (6400, 1600), (1600, 6400)] * 48,
}
ITERATIONS = 5
BFLOAT16 = numpy_dtype("bfloat16")
A, B, C = COEFFICIENTS
SAMPLED = 16  # rows of a product
LR, DECAY, MOMENTUM, EPS = 1e-4, 0.1, 0.95, 1e-7
MIXED = [(1, 1), (1, 300), (300, 1), (17, 33), (33, 17), (64, 64), (130, 70), (200, 99)]
LARGE = [(512, 512), (512, 130), (99, 512), (1, 9), (256, 512), (512, 256)]
LISTS: dict[str, tuple[list[Shape], dict[str, Any]]] = {
    "mixed, bf16": (MIXED, {}), "mixed, fp16": (MIXED, {"compute": "float16"}), "up to 512 x 512": (LARGE, {}),
    "Jordan's momentum, no Nesterov": (MIXED[3:6], {"use_nesterov": False, "average": False}),
    "blocks of rows": ([(24, 40), (96, 64)], {"blocks": cpu.Blocks(rows=4)}),
    "blocks of columns": ([(24, 40), (40, 24)], {"blocks": cpu.Blocks(columns=4)}),
}


def bits() -> Iterator[dict[str, Any]]:
    machine = gpu.device("gpu")
    for name, (shapes, options) in LISTS.items():
        rng = np.random.default_rng(1)
        host = [[rng.standard_normal(shape, np.float32) for shape in shapes] for _ in range(3)]
        there = [[machine.to_device(x) for x in arrays] for arrays in host]
        plan = gpu.plan("muon", *there, lr=0.02, **options)
        for _ in range(2):
            plan()
            cpu.merged_muon(*host, lr=0.02, **options)
        machine.synchronize()
        pairs = [(x.copy_to_host(), y) for k in (0, 2) for x, y in zip(there[k], host[k], strict=True)]
        differing = sum(int((x.view(np.uint32) != y.view(np.uint32)).sum()) for x, y in pairs)
        yield {"list": name, "elements": sum(y.size for _, y in pairs), "differing": differing}


def steps() -> Iterator[dict[str, Any]]:
    for model, shapes in MODELS.items():
        made = {"refopt, merged": _refopt, "refopt.torch.Muon": _drop_in, "torch.optim.Muon": _torch,
                "torch.optim.Muon, graph": _torch_graph, "PyTorch, by shape, graph": _by_shape,
                "PyTorch, by shape, compiled, graph": _compiled, "QuACK, by shape, graph": _by_quack}
        for name, make in made.items():
            torch.manual_seed(0)
            arrays = [[torch.randn(shape, device="cuda") for shape in shapes] for _ in range(2)]
            row: dict[str, Any] = {"model": model, "matrices": len(shapes), "step": name}
            try:
                call = make(*arrays)
                row["ms"] = round(device_ms(call, 7, 2), 3)
                row["host_ms"] = round(host_us(call, 3, 5, 1) / 1e3, 3)
                row["tflop_per_s"] = round(tflop(shapes) / row["ms"] * 1e3, 1)
            except (RuntimeError, ValueError, ImportError) as error:  # memory, or a graph that cannot be captured
                row["error"] = str(error)[:200]
            call = None
            free()
            yield row


def tflop(shapes: list[Shape]) -> float:
    """Of the products of all iterations, in full."""
    sides = [sorted(shape) for shape in shapes]
    return sum(ITERATIONS * (4 * m * m * n + 2 * m**3) for m, n in sides) / 1e12


def _refopt(params: list[Any], grads: list[Any]) -> Callable[[], object]:
    momentum = [torch.zeros_like(p) for p in params]
    return gpu.plan("muon", params, grads, momentum, lr=LR, iterations=ITERATIONS)


def _optimizer(params: list[Any], grads: list[Any], kind: Any = torch.optim.Muon) -> Any:
    leaves = [torch.nn.Parameter(p) for p in params]
    for p, g in zip(leaves, grads, strict=True):
        p.grad = g
    return kind(leaves, lr=LR, weight_decay=DECAY)


def _drop_in(params: list[Any], grads: list[Any]) -> Callable[[], object]:
    import refopt.torch

    return _optimizer(params, grads, refopt.torch.Muon).step


def _torch(params: list[Any], grads: list[Any]) -> Callable[[], object]:
    return _optimizer(params, grads).step


def _torch_graph(params: list[Any], grads: list[Any]) -> Callable[[], object]:
    return captured(_optimizer(params, grads).step)


def _compiled(params: list[Any], grads: list[Any]) -> Callable[[], object]:
    return captured(compiled(_stacked(params, grads, _iterated)))


def _by_shape(params: list[Any], grads: list[Any]) -> Callable[[], object]:
    return captured(_stacked(params, grads, _iterated))


def _by_quack(params: list[Any], grads: list[Any]) -> Callable[[], object]:
    from quack.gemm_interface import gemm_add, gemm_symmetric

    def iterated(x: Any) -> Any:
        square = gemm_symmetric(x, x.mT)
        polynomial = gemm_symmetric(square, square.mT, C=square, alpha=C, beta=B)
        return gemm_add(polynomial, x, x, beta=A)

    return captured(_stacked(params, grads, iterated))


def _iterated(x: Any) -> Any:
    square = torch.bmm(x, x.mT)
    polynomial = torch.baddbmm(square, square, square, beta=B, alpha=C)
    return torch.baddbmm(x, polynomial, x, beta=A)


def _stacked(params: list[Any], grads: list[Any], iterated: Callable[[Any], Any]) -> Callable[[], object]:
    """The step that PyTorch's operations make of it: lists for what is elementwise, stacks for products."""
    momentum, groups = [torch.zeros_like(p) for p in params], defaultdict(list)
    for i, p in enumerate(params):
        groups[tuple(p.shape)].append(i)

    def step() -> None:
        torch._foreach_lerp_(momentum, grads, 1 - MOMENTUM)
        updates = torch._foreach_lerp(grads, momentum, MOMENTUM)
        torch._foreach_mul_(params, 1 - LR * DECAY)
        for (rows, columns), of in groups.items():
            x = torch.stack([updates[i] for i in of]).bfloat16()
            x = x.mT.contiguous() if rows > columns else x
            x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)
            for _ in range(ITERATIONS):
                x = iterated(x)
            x = x.mT if rows > columns else x
            scale = -LR * max(1, rows / columns) ** 0.5
            torch._foreach_add_([params[i] for i in of], [y.float() for y in x], alpha=scale)

    return step


def workspace(shapes: list[Shape]) -> Workspace:
    """That of a model, with random numbers in all places."""
    made = [Matrix(i, 0, *shape, shape[1], 1, *shape, shape[0] <= shape[1]) for i, shape in enumerate(shapes)]
    work = Workspace(gpu.device("gpu"), made, "bfloat16", np.float32)
    torch.as_tensor(work.memory.view(np.int16), device="cuda").view(torch.bfloat16).normal_(0, 0.02)
    return work


def iteration(work: Workspace) -> list[Callable[[Any], None]]:
    """Its three launches."""
    return list(iterations.launches(gpu.device("gpu"), work, np.array([COEFFICIENTS], np.float32), "bfloat16"))


def products() -> Iterator[dict[str, Any]]:
    for model, shapes in MODELS.items():
        work = workspace(shapes)
        for way in ("mma.sync", "wgmma"):
            work.mapped = way == "wgmma"
            stream = torch.cuda.current_stream().cuda_stream
            calls = [partial(launch, stream) for launch in iteration(work)]
            three = [round(device_ms(call, 7, 2), 4) for call in calls]
            yield {"model": model, "by": way, **dict(zip(("x x^T", "b A + c A A", "a x + B x"), three, strict=True))}
        del work, calls
        free()


def rows() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(4)
    for model, shapes in MODELS.items():
        work = workspace(shapes)
        for launch in iteration(work):
            launch(0)
        torch.cuda.synchronize()
        bits = torch.as_tensor(work.memory.view(np.int16), device="cuda")
        start = work.memory.__cuda_array_interface__["data"][0]

        def fetched(address: int, m: int, n: int, bits: Any = bits, start: int = start) -> Any:
            at = (address - start) // 2
            return bits[at : at + m * n].reshape(m, n).cpu().numpy().view(BFLOAT16)

        names = "x x^T", "b A + c A A", "a x + B x"
        elements, differing = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        for i in [shapes.index(shape) for shape in dict.fromkeys(shapes)]:
            for name, of, numbers in zip(names, work.products(0), ((0, 1), (B, C), (A, 1)), strict=True):
                wrong, of_all = _differing(of[i], numbers, fetched, rng)
                elements[name] += of_all
                differing[name] += wrong
        yield from ({"model": model, "product": x, "elements": elements[x], "differing": differing[x]} for x in names)
        del work, bits, fetched
        free()


def _differing(p: Product, numbers: tuple[float, float], fetched: Callable, rng: Any) -> tuple[int, int]:
    """Of some rows of a product, elements that are not NumPy's; and all."""
    some = rng.choice(p.m, min(SAMPLED, p.m), replace=False)
    if p.added:
        a, b = fetched(p.a, p.m, p.k), fetched(p.b, p.k, p.n)
        beta, alpha = map(np.float32, numbers)
        added = beta * fetched(p.added, p.m, p.n)[some].astype(np.float32)
        expected = (added + alpha * cpu.matmul(a[some], b)).astype(BFLOAT16)
    else:
        x = fetched(p.a, p.k, p.m).T if p.along else fetched(p.a, p.m, p.k)
        expected = cpu.matmul(x[some], x.T).astype(BFLOAT16)
    got = fetched(p.out, p.m, p.n)[some]
    return int((got.view(np.uint16) != expected.view(np.uint16)).sum()), got.size


if __name__ == "__main__":
    by_parts(__doc__, "muon", {"steps": steps, "products": products, "bits": bits, "rows": rows})
