"""Steps of optimizers: of one, of two that are to agree, and beside PyTorch's from its parameters and states."""

import copy

from pytorch.bound import before, hold
from pytorch.subjects import BUSY, LR, MATRICES, SHAPES, all_bits, class_of, drawn, theirs, torch


def parameters(shapes=SHAPES, seed=0, dtype=None, device="cpu"):
    """Parameters of sizes near 1 and random signs: the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(drawn(shape, generator, dtype).to(device)) for shape in shapes]


def new_gradients(params, step, fresh=True, only=None):
    """Gradients of a step for parameters: other tensors than those before, or the same ones written again."""
    generator = torch.Generator().manual_seed(1000 + step)
    for i, p in enumerate(params):
        g = drawn(p.shape, generator, p.dtype).to(p.device)
        if only is not None and i not in only:
            p.grad = None
        elif fresh or p.grad is None:
            p.grad = g
        else:
            p.grad.copy_(g)


def steps(optimizer, params, numbers, **gradients):
    """Take the steps of some numbers."""
    for step in numbers:
        new_gradients(params, step, **gradients)
        optimizer.step()


def in_groups(params):
    """Two groups, of which the second has a rate of its own."""
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.25}]


def busy(name, params, kind=class_of, **options):
    """An optimizer that keeps all states that its class has."""
    return kind(name)(params, **{"lr": LR} | BUSY[name] | options)


def one(name, shapes=None, dtype=None, device="cpu", kind=class_of, **options):
    """New parameters, and such an optimizer of them."""
    params = parameters(shapes or (MATRICES if name == "Muon" else SHAPES), dtype=dtype, device=device)
    return params, busy(name, params, kind, **options)


def in_turn(numbers, *runs, **gradients):
    """Take the same steps of several: parameters, and their optimizer."""
    for params, optimizer in runs:
        steps(optimizer, params, numbers, **gradients)


def assert_alike(params, others, numbers=range(3)):
    """Steps of AdamW leave the same bits in both."""
    in_turn(numbers, *((x, class_of("AdamW")(x, lr=LR)) for x in (params, others)))
    assert all_bits(params) == all_bits(others)


def copied(params):
    """New parameters of the same values and strides."""
    return [torch.nn.Parameter(p.detach().clone(memory_format=torch.preserve_format)) for p in params]


def twin(saved, params, name, **options):
    """Copies of parameters, and an optimizer of them that has loaded a dictionary."""
    others = copied(params)
    optimizer = busy(name, others, **options)
    optimizer.load_state_dict(saved)
    return others, optimizer


def pair(name, *args, **options):
    """Two optimizers of equal parameters, each with its own."""
    return one(name, *args, **options), one(name, *args, **options)


def held(optimizer):
    """Take a step, which is held to the bound."""
    known = before(optimizer)
    optimizer.step()
    return hold(optimizer, known)


def held_step(optimizer, params, step, **gradients):
    """The same with new gradients."""
    new_gradients(params, step, **gradients)
    return held(optimizer)


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
        for each, tensors in ((peer, of_peer), (optimizer, params)):
            largest = held_step(each, tensors, step)
        worst = max(worst, largest)
    return worst
