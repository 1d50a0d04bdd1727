"""LARS as one writes it in PyTorch: the peers that refopt is timed against.

Nothing here waits for the device or computes a tensor's learning rate on the host. How many kernels a peer
launches is counted with its times.
"""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.tensors import Tensors

Step = Callable[[], None]


def foreach(
    state: Tensors, *, lr: float, mu: float, lars_coeff: float, lars_weight_decay: float, epsilon: float
) -> Step:
    """Every line of the formula as one multi-tensor operation.

    ``_foreach_mul_`` by a list of device scalars is a loop over the tensors inside, in PyTorch 2.11.
    """
    params, grads, velocities = _lists(state)
    exact, wide, plain = _prepared(state, lr)

    def step() -> None:
        p, g = _norms(params), _norms(grads)
        rates = _rate(p, g, plain, lr * lars_coeff, lars_weight_decay, epsilon).unbind()
        change = _decayed(grads, exact, wide, lars_weight_decay)
        torch._foreach_mul_(change, rates)
        torch._foreach_mul_(velocities, mu)
        torch._foreach_add_(velocities, change)
        torch._foreach_sub_(exact, velocities)
        if exact is not params:
            torch._foreach_copy_(params, exact)

    return step


def foreach_addcmul(
    state: Tensors, *, lr: float, mu: float, lars_coeff: float, lars_weight_decay: float, epsilon: float
) -> Step:
    """The same, with the product by the rate and the sum in one operation: one pass over the data less.

    In PyTorch 2.11, ``_foreach_addcmul_`` takes a list of device scalars without such a loop.
    """
    params, grads, velocities = _lists(state)
    exact, wide, plain = _prepared(state, lr)

    def step() -> None:
        p, g = _norms(params), _norms(grads)
        rates = _rate(p, g, plain, lr * lars_coeff, lars_weight_decay, epsilon).unbind()
        change = _decayed(grads, exact, wide, lars_weight_decay)
        torch._foreach_mul_(velocities, mu)
        torch._foreach_addcmul_(velocities, change, rates)
        torch._foreach_sub_(exact, velocities)
        if exact is not params:
            torch._foreach_copy_(params, exact)

    return step


def loop(state: Tensors, *, lr: float, mu: float, lars_coeff: float, lars_weight_decay: float, epsilon: float) -> Step:
    """One tensor after the other."""
    params, grads, velocities = _lists(state)
    exact, _, plain = _prepared(state, lr)

    def step() -> None:
        for p, g, v, x in zip(params, grads, velocities, exact, strict=True):
            p_norm = torch.linalg.vector_norm(p, dtype=torch.float32)
            g_norm = torch.linalg.vector_norm(g, dtype=torch.float32)
            rate = _rate(p_norm, g_norm, plain, lr * lars_coeff, lars_weight_decay, epsilon)
            v.mul_(mu).addcmul_(torch.add(g, x, alpha=lars_weight_decay), rate)
            x.sub_(v)
            if x is not p:
                p.copy_(x)

    return step


PEERS = {"foreach": foreach, "foreach_addcmul": foreach_addcmul, "loop": loop}


def _lists(state: Tensors) -> list[list[torch.Tensor]]:
    """Parameters, gradients and velocities."""
    return [state.slots[name] for name in ("params", "grads", "velocities")]


def _prepared(state: Tensors, lr: float) -> tuple[list, list | None, torch.Tensor]:
    """The exact parameters, room for 16-bit gradients in fp32, and lr on the device."""
    grads = state.slots["grads"]
    exact = state.slots.get("master_params", state.slots["params"])
    plain = torch.full((), lr, device=exact[0].device)
    if grads[0].dtype == torch.float32:
        return exact, None, plain
    return exact, [torch.empty_like(g, dtype=torch.float32) for g in grads], plain


def _norms(tensors: list) -> torch.Tensor:
    """The norm of every tensor, shape (P,)."""
    return torch.stack(torch._foreach_norm(tensors, 2, torch.float32))


def _rate(p_norm: Any, g_norm: Any, plain: Any, scale: float, decay: float, epsilon: float) -> torch.Tensor:
    """The local learning rate, of one tensor or of all of them at once."""
    rate = scale * p_norm / (torch.add(g_norm, p_norm, alpha=decay) + epsilon)
    return torch.where((p_norm > 0) & (g_norm > 0), rate, plain)


def _decayed(grads: list, exact: list, wide: list | None, lars_weight_decay: float) -> list:
    """g + wd * p for every tensor, in fp32."""
    if wide is None:
        return torch._foreach_add(grads, exact, alpha=lars_weight_decay)
    torch._foreach_copy_(wide, grads)
    torch._foreach_add_(wide, exact, alpha=lars_weight_decay)
    return wide
