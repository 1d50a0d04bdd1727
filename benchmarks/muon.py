"""Times a step of merged Muon over the hidden matrices of two models on a GPU, beside PyTorch's, and compares its bits.

    python -m benchmarks.muon [--out FILE]

``bits`` has lists of matrices after some steps: elements of parameters and momentum, and how many differ from
`refopt.cpu.merged_muon`. ``steps`` has milliseconds of the device for a whole step, fp32 parameters and five iterations
in bf16, and the rate of the products, as if they were computed in full: refopt's, of which symmetric ones are computed
by half; `torch.optim.Muon`'s as its users have it, and as a CUDA graph; and PyTorch's operations on stacks of all
matrices of a shape, as a CUDA graph.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.measure import captured, device_ms, free
from benchmarks.record import by_parts
from refopt import cpu, gpu

Shape = tuple[int, int]
MODELS: dict[str, list[Shape]] = {
    "BERT-large": [*[(1024, 1024)] * 4, (4096, 1024), (1024, 4096)] * 24,
    "GPT-2 XL": [(4800, 1600), (1600, 1600), (6400, 1600), (1600, 6400)] * 48,
}
ITERATIONS = 5
A, B, C = 3.4445, -4.7750, 2.0315
LR, DECAY, MOMENTUM, EPS = 1e-4, 0.1, 0.95, 1e-7
MIXED = [(1, 1), (1, 300), (300, 1), (17, 33), (33, 17), (64, 64), (130, 70), (200, 99)]
LARGE = [(512, 512), (512, 130), (99, 512), (1, 9), (256, 512), (512, 256)]
LISTS: dict[str, tuple[list[Shape], dict[str, Any]]] = {
    "mixed, bf16": (MIXED, {}), "mixed, fp16": (MIXED, {"compute": "float16"}), "up to 512 x 512": (LARGE, {}),
    "Jordan's momentum, no Nesterov": (MIXED[3:6], {"use_nesterov": False, "average": False}),
    "blocks of rows": ([(24, 40), (96, 64)], {"blocks": cpu.Blocks(rows=4)}),
    "blocks of columns": ([(24, 40), (40, 24)], {"blocks": cpu.Blocks(columns=4)}),
}  # fmt: skip


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
        made = {"refopt, merged": _refopt, "torch.optim.Muon": _torch, "torch.optim.Muon, graph": _torch_graph,
                "PyTorch, by shape, graph": _by_shape}  # fmt: skip
        for name, make in made.items():
            torch.manual_seed(0)
            arrays = [[torch.randn(shape, device="cuda") for shape in shapes] for _ in range(2)]
            row: dict[str, Any] = {"model": model, "matrices": len(shapes), "step": name}
            try:
                call = make(*arrays)
                row["ms"] = round(device_ms(call, 7, 2), 3)
                row["tflop_per_s"] = round(tflop(shapes) / row["ms"] * 1e3, 1)
            except (RuntimeError, ValueError) as error:  # memory, or a graph that cannot be captured
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


def _optimizer(params: list[Any], grads: list[Any]) -> Any:
    leaves = [torch.nn.Parameter(p) for p in params]
    for p, g in zip(leaves, grads, strict=True):
        p.grad = g
    return torch.optim.Muon(leaves, lr=LR, weight_decay=DECAY)


def _torch(params: list[Any], grads: list[Any]) -> Callable[[], object]:
    return _optimizer(params, grads).step


def _torch_graph(params: list[Any], grads: list[Any]) -> Callable[[], object]:
    return captured(_optimizer(params, grads).step)


def _by_shape(params: list[Any], grads: list[Any]) -> Callable[[], object]:
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

    return captured(step)


if __name__ == "__main__":
    by_parts(__doc__, "muon", {"steps": steps, "bits": bits})
