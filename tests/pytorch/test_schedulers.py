"""Schedulers of ``torch.optim.lr_scheduler`` of each kind drive the classes as they drive PyTorch's."""

import warnings

import pytest

from pytorch.subjects import LR, all_bits, class_of, theirs, torch
from pytorch.trials import held, new_gradients, parameters

lr_scheduler = torch.optim.lr_scheduler
STEPS = 6


def _sequential(optimizer):
    first = lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=2)
    return lr_scheduler.SequentialLR(optimizer, [first, lr_scheduler.ExponentialLR(optimizer, 0.5)], milestones=[3])


def _chained(optimizer):
    return lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=3),
                                          lr_scheduler.ExponentialLR(optimizer, 0.5)])


SCHEDULERS = {"LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
              "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.5), "SequentialLR": _sequential,
              "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=4), "ChainedScheduler": _chained,
              "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5),
              "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, LR / 4, LR, step_size_up=2),
              "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=LR, total_steps=STEPS + 1),
              "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=LR / 8, anneal_epochs=3)}


def advance(scheduler, step):
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(1.0 if step < 2 else 2.0)
    else:
        scheduler.step()


def numbers(optimizer):
    return [{key: float(group[key]) for key in ("lr", "momentum") if key in group} for group in optimizer.param_groups]


def driven(kind, name, make, given, check=False):
    """The numbers of each step, and the bits at the end."""
    params = parameters(((3, 2), (4,)))
    optimizer = kind(name)([{"params": params[:1]}, {"params": params[1:], "lr": LR / 2}], **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR and ChainedScheduler call what PyTorch has deprecated
        scheduler = make(optimizer)
        every = []
        for step in range(STEPS):
            new_gradients(params, step)
            every.append(numbers(optimizer))
            held(optimizer) if check else optimizer.step()
            advance(scheduler, step)
    return every, all_bits(params)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize(("name", "given"), [("SGD", {"momentum": 0.875}), ("AdamW", {})], ids=["SGD", "AdamW"])
@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor"])
def test_a_scheduler(scheduler, name, given, tensor):
    """Each step has the rate of its time, and the momentum, where that is scheduled; both are PyTorch's."""
    given = given | {"lr": torch.tensor(LR) if tensor else LR}
    ours, _ = driven(class_of, name, SCHEDULERS[scheduler], given, check=True)
    assert len({group["lr"] for groups in ours for group in groups}) > 2
    given["lr"] = torch.tensor(LR) if tensor else LR
    assert ours == driven(theirs, name, SCHEDULERS[scheduler], given)[0]
