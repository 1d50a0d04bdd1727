"""What the sharded step is timed against: DDP's buckets, and PyTorch's `ZeroRedundancyOptimizer` with a fused Adam."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

from benchmarks.communication import MEBIBYTE, Buckets
from benchmarks.sharded_programs import NUMBERS, Params


class InPlace(Buckets):
    """The same where gradients are views of their buckets, as with ``gradient_as_bucket_view``."""

    def __init__(self, grads: list[torch.Tensor], limits: list[int]) -> None:
        super().__init__(grads, limits)
        for views, group in zip(self.views, self.groups, strict=True):
            torch._foreach_copy_(views, group)
            for view, grad in zip(views, group, strict=True):
                grad.data = view

    def all_reduce(self) -> None:
        works = []
        for flat in self.flat:
            flat.div_(dist.get_world_size())
            works.append(dist.all_reduce(flat, async_op=True))
        for work in works:
            work.wait()


def zero(buckets: type[Buckets], as_view: bool, params: Params) -> Callable[[], None]:
    """PyTorch's step: gradients averaged in buckets, a fused Adam on the owner of each parameter, and broadcasts."""
    parameters = [torch.nn.Parameter(torch.empty(shape, device="cuda").normal_(0, 0.02)) for _, shape in params]
    for param in parameters:
        param.grad = torch.empty_like(param).normal_()
    reduced = buckets([param.grad for param in parameters], [MEBIBYTE, 25 * MEBIBYTE])
    optimizer = ZeroRedundancyOptimizer(
        parameters, torch.optim.Adam, parameters_as_bucket_view=as_view, fused=True, **NUMBERS
    )

    def step() -> None:
        reduced.all_reduce()
        optimizer.step()

    return step


PEERS: dict[str, Callable[[Params], Callable[[], None]]] = {
    f"PyTorch, {ddp}, ZeroRedundancyOptimizer, parameters_as_bucket_view={as_view}": partial(zero, buckets, as_view)
    for ddp, buckets in (("DDP's buckets", Buckets), ("DDP's buckets as views", InPlace))
    for as_view in (True, False)
}
