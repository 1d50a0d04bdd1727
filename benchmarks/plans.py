"""What is done with plans of any routine: their launches one by one, and a captured step replayed."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.measure import free, row_of
from benchmarks.tensors import Tensors
from refopt import gpu
from refopt.gpu.launches import Alternating


def own_row(
    values: Tensors, step: Callable[[], Any], moved: int, copy_gb_s: float, held: int | None = None, **hyper: Any
) -> dict[str, Any]:
    """Time of one of refopt's own steps, and whether it still computes what `refopt.cpu` does after being timed.

    Args:
        values, step: the tensors, and the step of all of them.
        moved, copy_gb_s, held: those of `row_of`.
        hyper: numbers of the step, other than those without which none is planned.
    """
    row = row_of(step, moved, copy_gb_s, held=held)
    return joined(row, values.differing_after(step, **hyper))


def joined(row: dict[str, Any], *checks: dict[str, Any]) -> dict[str, Any]:
    """A row with what was checked after it was timed; bytes that differ add up."""
    differing = sum(check["differing_bytes"] for check in checks)
    last = checks[-1] | {"differing_bytes": differing}
    return row | last | {"ok": row.get("ok", True) and all(check["ok"] for check in checks)}


class OneByOne:
    """The launches of a plan, each enqueued on its own: a loop, where a plan makes one graph of them."""

    def __init__(self, plan: gpu.Plan) -> None:
        self.plan = plan
        self.launches = plan.launches
        # A plan does not offer this; it is here to show why.
        sequences = [step._plain[0] if isinstance(step, Alternating) else step._steady for step in plan._steps]
        self._enqueue = [launch for sequence in sequences for launch in sequence._launches]  # type: ignore

    def __call__(self) -> None:
        for launch in self._enqueue:
            launch(self.plan.stream)


def capture_and_replay(plan: gpu.Plan, stream: torch.cuda.Stream, rates: Sequence[float]) -> None:
    """A step with the first lr; then one captured in a CUDA graph, and replayed with each of the others."""
    with torch.cuda.stream(stream):
        plan(lr=rates[0])
    stream.synchronize()
    free()  # nothing may be freed on the device during the capture
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded, stream=stream):
        plan()
    with torch.cuda.stream(stream):
        for lr in rates[1:]:
            plan.set(lr=lr)
            recorded.replay()
    stream.synchronize()
