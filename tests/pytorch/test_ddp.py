"""Two processes of DistributedDataParallel: the same bits on both ranks, and as one process with averaged gradients."""

import datetime

import pytest

from pytorch.subjects import BUSY, LR, all_bits, class_of, drawn, torch

distributed = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()), reason="PyTorch has no gloo here"
)
RANKS, STEPS, PATIENCE = 2, 3, 60


def model_of():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


def loss_of(model, step, rank):
    inputs = drawn((2, 4), torch.Generator().manual_seed(10 * step + rank))
    return (model(inputs) ** 2).mean()


def rank_of(rank, names, store, results):
    """One of the processes."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS,
        timeout=datetime.timedelta(seconds=PATIENCE),
    )  # fmt: skip
    try:
        every = {}
        for name in names:
            plain = model_of()
            model = torch.nn.parallel.DistributedDataParallel(plain)
            optimizer = class_of(name)(model.parameters(), lr=LR, **BUSY[name])
            for step in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, step, rank).backward()
                optimizer.step()
            every[name] = all_bits(list(plain.parameters()), optimizer)
        torch.save(every, f"{results}/{rank}.pt")
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


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
    return all_bits(params, optimizer)


def test_two_processes(tmp_path):
    """Of every kind of routine: with and without states, with norms."""
    names = "SGD", "AdamW", "LAMB"
    context = torch.multiprocessing.get_context("spawn")
    ranks = [
        context.Process(target=rank_of, args=(rank, names, tmp_path / "store", tmp_path), daemon=True)
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(2 * PATIENCE)
        assert [process.exitcode for process in ranks] == [0] * RANKS
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(RANKS))
    assert first == second
    for name in names:
        assert first[name] == alone(name), name
