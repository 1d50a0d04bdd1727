"""Times a step of merged Muon over the hidden matrices of two models on a GPU, beside PyTorch's, and compares its bits.

    python -m benchmarks.muon [--out FILE]

``bits`` has lists of matrices after some steps: elements of parameters and momentum, and how many differ from
`refopt.cpu.merged_muon`. ``rows`` has sampled rows of every product of a step in the full models, by Gram matrices and
by the standard iteration, by ``mma.sync`` and by ``wgmma``: elements, and how many differ from `refopt.cpu.matmul`,
given the product's inputs on the device. ``products`` has milliseconds of each kind, of one standard iteration or of
all by Gram matrices. ``steps`` has milliseconds of the device for a whole step, fp32 parameters and five iterations,
those that the call takes the host, and the rate of the products, as if they were the standard ones, computed in full:
refopt's, of which symmetric ones are computed by half, as a plan, with and without Gram matrices, and as
`refopt.torch.Muon`; `torch.optim.Muon`'s as its users have it, and as a CUDA graph; PyTorch's operations on stacks of
all matrices of a shape, as a CUDA graph; and the optimizer of ``gram-newton-schulz``, which has kernels of its own for
symmetric products, compiled, as a CUDA graph.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks.measure import captured, device_ms, free, host_us
from benchmarks.record import by_parts
from refopt import cpu, gpu
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.newton_schulz import JORDAN, PRESETS, takes_gram
from refopt.gpu.muon import iterations
from refopt.gpu.muon.iterations import Stage
from refopt.gpu.muon.matrices import Matrix, Workspace
from refopt.gpu.products import Product

Shape = tuple[int, int]
MODELS: dict[str, list[Shape]] = {
    "BERT-large": [*[(1024, 1024)] * 4, (4096, 1024), (1024, 4096)] * 24,
    "GPT-2 XL": [(4800, 1600), (1600, 1600), (6400, 1600), (1600, 6400)] * 48,
}
ITERATIONS = 5
A, B, C = JORDAN
SAMPLED = 1  # rows of a product
LR, DECAY, MOMENTUM, EPS = 1e-4, 0.1, 0.95, 1e-7
MIXED = [(1, 1), (1, 300), (300, 1), (17, 33), (33, 17), (64, 64), (130, 70), (200, 99)]
LARGE = [(512, 512), (512, 130), (99, 512), (1, 9), (256, 512), (512, 256)]
GRAM: dict[str, Any] = {"compute": "float16", "restarts": (2,), "coefficients": "polar_express"}
LISTS: dict[str, tuple[list[Shape], dict[str, Any]]] = {
    "mixed, bf16": (MIXED, {}), "mixed, fp16": (MIXED, {"compute": "float16"}), "up to 512 x 512": (LARGE, {}),
    "Gram, bf16": (MIXED, {"restarts": (2, 4)}), "Gram, fp16": (MIXED, GRAM),
    "Gram, up to 512 x 2048": ([*LARGE, (2048, 512), (384, 2048)], GRAM),
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
        made = {
            "refopt, merged": _refopt, "refopt, merged, fp16": partial(_refopt, compute="float16"),
            "refopt, Gram": partial(_refopt, **GRAM),
            "gram-newton-schulz, graph": partial(_package, algorithm="gram_newton_schulz", kind="GramNewtonSchulz"),
            "gram-newton-schulz, standard, graph": partial(
                _package, algorithm="standard_newton_schulz", kind="StandardNewtonSchulz"),
            "torch.optim.Muon": _torch, "torch.optim.Muon, graph": _torch_graph,
            "PyTorch, by shape, graph": _by_shape, "refopt.torch.Muon": _drop_in,
        }
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


def _refopt(params: list[Any], grads: list[Any], **options: Any) -> Callable[[], object]:
    momentum = [torch.zeros_like(p) for p in params]
    return gpu.plan("muon", params, grads, momentum, lr=LR, iterations=ITERATIONS, **options)


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


def _by_shape(params: list[Any], grads: list[Any]) -> Callable[[], object]:
    return captured(_stacked(params, grads))


def _package(params: list[Any], grads: list[Any], algorithm: str, kind: str) -> Callable[[], object]:
    """The optimizer of gram-newton-schulz; its iterations are compiled so that the whole step can be captured."""
    import gram_newton_schulz as package

    torch._dynamo.reset()
    of = partial(package.Muon, ns_algorithm=algorithm, gram_newton_schulz_restart_iterations=[2])
    optimizer = _optimizer(params, grads, of)
    optimizer.newton_schulz = getattr(package, kind)(ns_use_kernels=True, compile_kwargs={"fullgraph": True})
    return captured(optimizer.step)


def _stacked(params: list[Any], grads: list[Any]) -> Callable[[], object]:
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
                square = torch.bmm(x, x.mT)
                polynomial = torch.baddbmm(square, square, square, beta=B, alpha=C)
                x = torch.baddbmm(x, polynomial, x, beta=A)
            x = x.mT if rows > columns else x
            scale = -LR * max(1, rows / columns) ** 0.5
            torch._foreach_add_([params[i] for i in of], [y.float() for y in x], alpha=scale)

    return step


def workspace(shapes: list[Shape], gram: bool, compute: str) -> Workspace:
    """That of a model, with random matrices of about norm 1."""
    made = [Matrix(i, 0, *shape, shape[1], 1, *shape, shape[0] <= shape[1]) for i, shape in enumerate(shapes)]
    kinds = [takes_gram(*shape, () if gram else None) for shape in shapes]
    work = Workspace(gpu.device("gpu"), made, compute, np.float32, kinds)
    numbers = _bits(work).view(getattr(torch, compute))
    start = work.places["x", 0]
    for i, m in enumerate(made):
        at = (work.places["x", i] - start) // 2
        numbers[at : at + m.size].normal_(0, m.size**-0.5)
    return work


def _bits(work: Workspace) -> Any:
    """The memory of the iterations as a tensor of int16."""
    return torch.as_tensor(work.memory.view(np.int16), device="cuda")


def _calls(work: Workspace, gram: bool, compute: str) -> list[tuple[Stage, Callable[[Any], None]]]:
    """The stages that have matrices, each with its launch."""
    triples = np.array(PRESETS["polar_express"], np.float32)
    every, _ = iterations.stages(triples, (2,) if gram else None)
    made = [(stage, [*iterations.launches(gpu.device("gpu"), work, [stage], compute)]) for stage in every]
    return [(stage, launches[0]) for stage, launches in made if launches]


KINDS = {(True, True, False): "x x^T", (False, True, True): "b A + c A A", (False, False, True): "a x + B x",
         (False, False, False): "Q x"}


def products() -> Iterator[dict[str, Any]]:
    for (model, shapes), gram, way in product(MODELS.items(), (False, True), ("mma.sync", "wgmma")):
        work = workspace(shapes, gram, "float16")
        work.mapped = way == "wgmma"
        stream, total = torch.cuda.current_stream().cuda_stream, dict.fromkeys(KINDS.values(), 0.0)
        calls = _calls(work, gram, "float16")
        for stage, launch in calls:
            if stage.operations:
                total[KINDS[stage.operations[0].kind]] += device_ms(partial(launch, stream), 3, 1)
        rounded = {kind: round(ms if gram else ms / ITERATIONS, 4) for kind, ms in total.items() if ms}
        yield {"model": model, "gram": gram, "by": way, "launches": len(calls), **rounded}
        del work, calls
        free()


def rows() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(4)
    for (model, shapes), gram, way in product(MODELS.items(), (False, True), ("mma.sync", "wgmma")):
        compute = "float16" if gram else "bfloat16"
        work = workspace(shapes, gram, compute)
        work.mapped = way == "wgmma"
        bits, start, dtype = _bits(work), work.places["x", 0], numpy_dtype(compute)
        elements, differing = dict.fromkeys(KINDS.values(), 0), dict.fromkeys(KINDS.values(), 0)

        def fetched(
            address: int, m: int, n: int, bits: Any = bits, start: int = start, dtype: Any = dtype
        ) -> np.ndarray:
            at = (address - start) // 2
            return bits[at : at + m * n].reshape(m, n).cpu().numpy().view(dtype)

        firsts = {shape: shapes.index(shape) for shape in shapes}
        for stage, launch in _calls(work, gram, compute):
            launch(0)
            torch.cuda.synchronize()
            for operation in stage.operations:
                of = [i for i, is_gram in enumerate(work.gram) if is_gram == operation.gram]
                for i, p in zip(of, work.products([operation]), strict=True):
                    if i in firsts.values():
                        kind = KINDS[operation.kind]
                        wrong, of_all = _differing(p, operation.kind[1], (stage.alpha, stage.beta), fetched, rng)
                        elements[kind] += of_all
                        differing[kind] += wrong
        for kind, count in elements.items():
            if count:
                yield {"model": model, "gram": gram, "by": way, "product": kind, "elements": count,
                       "differing": differing[kind]}
        del work, bits, fetched
        free()


def _differing(
    p: Product, symmetric: bool, numbers: tuple[Any, Any], fetched: Callable, rng: Any
) -> tuple[int, int]:
    """Of some rows of a product, elements that are not NumPy's; and all."""
    alpha, beta = numbers
    got, wrong = fetched(p.out, p.m, p.n), 0
    added = fetched(p.added, p.m, p.n).astype(np.float32) if p.added else None
    if p.a == p.b:
        a = fetched(p.a, p.k, p.m).T if p.along else fetched(p.a, p.m, p.k)
        b = a.T
    else:
        a, b = fetched(p.a, p.m, p.k), fetched(p.b, p.k, p.n)
    some = rng.choice(p.m, min(SAMPLED, p.m), replace=False)
    for r in some:
        parts = [(slice(r, r + 1), slice(0, r + 1)), (slice(r + 1, None), slice(r, r + 1))] if symmetric else [
            (slice(r, r + 1), slice(None))]
        for down, across in parts:
            sums = cpu.matmul(np.ascontiguousarray(a[down]), np.ascontiguousarray(b[:, across]))
            sums = sums if added is None else beta * added[down, across] + alpha * sums
            wrong += int((got[down, across].view(np.uint16) != sums.astype(got.dtype).view(np.uint16)).sum())
        if symmetric:
            wrong += int((got[r].view(np.uint16) != got[:, r].view(np.uint16)).sum())
    return wrong, len(some) * p.n


if __name__ == "__main__":
    by_parts(__doc__, "muon", {"steps": steps, "products": products, "bits": bits, "rows": rows})
