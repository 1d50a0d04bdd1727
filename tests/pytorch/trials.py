"""Steps of a class beside PyTorch's, each from PyTorch's parameters, states and gradients."""

import copy

from pytorch.bound import before, hold
from pytorch.subjects import SHAPES, class_of, new_gradients, parameters, theirs, torch


def synchronise(optimizer, params, peer, of_peer):
    """Have an optimizer go on from another's parameters and states."""
    with torch.no_grad():
        for p, q in zip(params, of_peer, strict=True):
            p.copy_(q)
    optimizer.load_state_dict(copy.deepcopy(peer.state_dict()))


def beside(name, kwargs, count, *, dtype=None, device="cpu", shapes=SHAPES):
    """Hold ``count`` steps of both to the bound; returns the largest error of the class over its bound."""
    params, of_peer = (parameters(shapes, dtype=dtype, device=device) for _ in range(2))
    optimizer, peer = (kind(name)(x, **copy.deepcopy(kwargs)) for kind, x in ((class_of, params), (theirs, of_peer)))
    worst = 0.0
    for step in range(count):
        synchronise(optimizer, params, peer, of_peer)
        for one, tensors in ((peer, of_peer), (optimizer, params)):
            new_gradients(tensors, step)
            known = before(one)
            one.step()
            largest = hold(one, known)
        worst = max(worst, largest)
    return worst
