"""What is done with plans of any routine: their launches one by one, and a captured step replayed."""

from collections.abc import Sequence

import torch

from benchmarks.measure import free
from refopt import gpu
from refopt.gpu.plan import Alternating


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
