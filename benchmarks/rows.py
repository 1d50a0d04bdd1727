"""Times lazy AdamW of an embedding table on a GPU, beside PyTorch's SparseAdam, and compares its bits.

    python -m benchmarks.rows [--out FILE]

The table has 10,000,000 rows of 128 fp32 columns. A gradient names 8,192 of them once (``"uniform"``), or in a draw by
Zipf's law, some often. Of refopt, ``steps`` has microseconds of the device, the mean over eight gradients in turn,
replayed as a CUDA graph, so that no step finds its rows in the L2 cache; of the host, for a step, and for one after
``rebind``; and in how many bytes rows with a gradient, and others, differ from NumPy's after two steps. In ``floor_us``
a copy moves ``bytes``: values, parameters and moments of the rows, and again all of these but values. Without a GPU, a
small table is updated on the executor, and times mean nothing.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from benchmarks import measure
from benchmarks.record import by_parts
from refopt import cpu, gpu

GPU = torch.cuda.is_available()
ROWS, COLUMNS, OCCURRENCES, GRADIENTS = (10_000_000, 128, 8192, 8) if GPU else (1000, 128, 64, 2)
OTHERS = ROWS // 200  # rows without a gradient that are compared
CHECKED = 2  # steps whose bits are compared
NUMBERS: dict[str, Any] = {"lr": 1e-3, "coeff": 0.01}


def draw(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A sparse gradient on the host."""
    rng = np.random.default_rng(seed)
    if kind == "uniform":
        indices = rng.choice(ROWS, OCCURRENCES, replace=False)
    else:  # rank r is drawn about once for 1/r, and ranks are scattered over the table
        ranks = np.exp(rng.random(OCCURRENCES) * np.log(ROWS)).astype(np.int64)
        indices = ranks * 7919 % ROWS
    return indices.astype(np.int64), rng.standard_normal((OCCURRENCES, COLUMNS), np.float32)


def placed(x: np.ndarray) -> Any:
    """An array where steps run."""
    return torch.from_numpy(x).cuda() if GPU else gpu.device("executor").to_device(x)


def table(seed: int) -> Any:
    """A table of normally distributed numbers, or for seeds above 0 of moments."""
    if not GPU:
        x = np.random.default_rng(seed).standard_normal((ROWS, COLUMNS), np.float32)
        return placed(x if seed < 2 else abs(x))
    x = torch.empty((ROWS, COLUMNS), device="cuda").normal_(generator=torch.Generator("cuda").manual_seed(seed))
    return x if seed < 2 else x.abs_()


def taken(x: Any, rows: np.ndarray) -> np.ndarray:
    """Some rows of an array, or all of a short one, on the host."""
    rows = rows if x.shape[0] == ROWS else np.arange(x.shape[0])
    return x[torch.from_numpy(rows).cuda()].cpu().numpy() if GPU else x.copy_to_host()[rows]


class Step:
    """Plans of the same table, one for each gradient."""

    def __init__(self, kind: str, count: str) -> None:
        self.host = [draw(kind, seed) for seed in range(GRADIENTS)]
        self.sparse = [tuple(map(placed, pair)) for pair in self.host]
        size, self.count = ROWS if count == "row" else 1, count
        powers = [placed(np.full(size, beta, np.float32)) for beta in (0.9, 0.999)]
        self.arrays = [*map(table, range(3)), *powers]
        self.plans = [self.plan(k) for k in range(GRADIENTS)]

    def plan(self, k: int) -> gpu.LazyPlan:
        """A plan of gradient k."""
        params, *states = [[x] for x in self.arrays]
        indices, values = self.sparse[k]
        return gpu.lazy_plan("adamw", params, [indices], [values], *states, count=self.count, **NUMBERS)

    def differing(self) -> dict[str, int]:
        """Bytes that differ from NumPy's after some steps: of rows with a gradient, and of others."""
        rows = np.unique(np.concatenate([indices for indices, _ in self.host[:CHECKED]]))
        others = np.setdiff1d(np.random.default_rng(0).integers(0, ROWS, OTHERS), rows)
        expected, kept = ([taken(x, some) for x in self.arrays] for some in (rows, others))
        params, *states = [[x] for x in expected]
        for (indices, values), plan in zip(self.host[:CHECKED], self.plans, strict=False):
            plan()
            cpu.merged_lazy("adamw", params, [np.searchsorted(rows, indices)], [values], *states, count=self.count,
                            **NUMBERS)
        found = {"differing": bytes_apart(expected, [taken(x, rows) for x in self.arrays])}
        tables = slice(3 if self.count == "global" else None)
        apart = bytes_apart(kept[tables], [taken(x, others) for x in self.arrays[tables]])
        return {"compared": len(rows), **found, "others": len(others), "differing_others": apart}

    def all(self) -> None:
        """A step with each gradient."""
        for plan in self.plans:
            if GPU:
                plan.stream = torch.cuda.current_stream().cuda_stream
            plan()

    def rebound(self) -> Callable[[], None]:
        """A step after the gradient was replaced by another."""
        plan, turn = self.plans[0], [0]

        def step() -> None:
            turn[0] = (turn[0] + 1) % GRADIENTS
            indices, values = self.sparse[turn[0]]
            plan.rebind([indices], [values])
            plan()

        return step


def bytes_apart(expected: list[np.ndarray], got: list[np.ndarray]) -> int:
    """In how many bytes arrays differ."""
    return sum(int((x.view(np.uint8) != y.view(np.uint8)).sum()) for x, y in zip(expected, got, strict=True))


def device_us(steps: Callable[[], Any], graph: bool) -> float:
    """Microseconds of the device for one of `GRADIENTS` steps."""
    if not GPU:
        return host_us(steps)
    return measure.device_ms(measure.captured(steps) if graph else steps) / GRADIENTS * 1e3


def host_us(step: Callable[[], Any]) -> float:
    """Microseconds of the host for a step."""
    if GPU:
        return measure.host_us(step, calls=20, rounds=11)
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e6


def steps() -> Iterator[dict[str, Any]]:
    bandwidth = measure.copy_gb_s(1) if GPU else 1.0
    for kind in ("uniform", "zipf"):
        for count in ("global", "row"):
            step = Step(kind, count)
            occurring = np.unique(step.host[0][0], return_counts=True)[1]
            moved = 4 * COLUMNS * (6 * len(occurring) + OCCURRENCES)
            row = {"step": "refopt", "draw": kind, "count": count, "rows": len(occurring)}
            row |= {"most": int(occurring.max()), "launches": step.plans[0].launches, **step.differing()}
            row |= {"device_us": device_us(step.all, True), "host_us": host_us(step.plans[0])}
            row |= {"rebound_host_us": host_us(step.rebound()), "bytes": moved, "floor_us": moved / bandwidth / 1e3}
            step.plans[0].check_indices()
            yield row | {"ok": not row["differing"] and not row["differing_others"]}
            del step
            measure.free()
        yield {"step": "torch SparseAdam", "draw": kind} | peer(kind)
        measure.free()


def peer(kind: str) -> dict[str, Any]:
    """PyTorch's SparseAdam of the same table and gradients."""
    device = "cuda" if GPU else "cpu"
    param = torch.nn.Parameter(table(0) if GPU else torch.from_numpy(table(0).copy_to_host()))
    grads = [torch.sparse_coo_tensor(torch.from_numpy(indices[None]), torch.from_numpy(values), param.shape)
             .to(device) for indices, values in (draw(kind, seed) for seed in range(GRADIENTS))]
    optimizer = torch.optim.SparseAdam([param], lr=1e-3)

    def step(grad: torch.Tensor) -> None:
        param.grad = grad
        optimizer.step()

    one = lambda: step(grads[0])  # noqa: E731
    every = lambda: [step(grad) for grad in grads]  # noqa: E731
    return {"device_us": device_us(every, False), "host_us": host_us(one)}


if __name__ == "__main__":
    by_parts(__doc__, "rows", {"steps": steps})
