"""Two processes of DistributedDataParallel: the same bits on both ranks, and as one process with averaged gradients.

Gradients are tensors, or views of DDP's buckets; the optimizer has all states, or ZeroRedundancyOptimizer shares them.
"""

import functools

import pytest

from pytorch.groups import process_group, with_gloo
from pytorch.subjects import BUSY, LR, all_bits, class_of, drawn, torch

ZeroRedundancyOptimizer = pytest.importorskip("torch.distributed.optim").ZeroRedundancyOptimizer
pytestmark = with_gloo
RANKS, STEPS = 2, 3


def model_of():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


def loss_of(model, step, rank):
    return (model(drawn((2, 4), torch.Generator().manual_seed(10 * step + rank))) ** 2).mean()


def rank_of(rank, names, results):
    """One of the processes."""
    with process_group(results, rank, RANKS):
        every = {}
        for name, how in [*((name, "") for name in names), (names[1], "views"), (names[1], "sharded")]:
            plain = model_of()
            model = torch.nn.parallel.DistributedDataParallel(plain, gradient_as_bucket_view=how == "views")
            make = class_of(name)
            if how == "sharded":  # each rank has states of some parameters, and sends these to the other
                make = functools.partial(ZeroRedundancyOptimizer, optimizer_class=make)
            optimizer = make(model.parameters(), lr=LR, **BUSY[name])
            for step in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, step, rank).backward()
                optimizer.step()
            every[name, how] = all_bits(list(plain.parameters()))
        torch.save(every, f"{results}/{rank}.pt")


def alone(name):
    """What one process comes to with the mean of both gradients."""
    model = model_of()
    params = list(model.parameters())
    optimizer = class_of(name)(params, lr=LR, **BUSY[name])
    for step in range(STEPS):
        halves = []
        for rank in range(RANKS):
            optimizer.zero_grad()
            loss_of(model, step, rank).backward()
            halves.append([p.grad / RANKS for p in params])
        for p, *parts in zip(params, *halves, strict=True):
            p.grad = sum(parts)
        optimizer.step()
    return all_bits(params)


def test_two_processes(tmp_path):
    """Of every kind of routine: with and without states, with norms."""
    names = "SGD", "AdamW", "LAMB"
    torch.multiprocessing.spawn(rank_of, (names, tmp_path), RANKS)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(RANKS))
    assert first == second
    for (name, how), bits in first.items():
        assert bits == alone(name), (name, how)


def trained(model, optimizer):
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, 0).backward()
        optimizer.step()


def test_steps_inside_of_the_backward_pass():
    """An optimizer per parameter, whose gradient is freed as soon as it has been used."""
    model, plain = model_of(), model_of()
    single = {p: class_of("AdamW")([p], lr=LR) for p in model.parameters()}

    def hook(p):
        single[p].step()
        single[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    trained(plain, class_of("AdamW")(plain.parameters(), lr=LR))
    for step in range(STEPS):
        loss_of(model, step, 0).backward()
        assert all(p.grad is None for p in model.parameters())
    assert all_bits(list(model.parameters())) == all_bits(list(plain.parameters()))
