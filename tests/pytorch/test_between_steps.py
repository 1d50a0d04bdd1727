"""What callers change between steps reaches the next one, also where nobody looks at states, so that plans are kept.

One run looks at its states after each step, which makes everything anew; the other does not. Steps of the first are
held to the bound.
"""

import gc
import weakref

import pytest

from pytorch.subjects import BUSY, LR, all_bits, class_of, every_class, torch
from pytorch.trials import held, in_groups, in_turn, new_gradients, one, parameters, steps

SHAPES = (3, 4), (), (5,), (2, 3)
STEPS = 4


def rates(optimizer, params, step):
    """Of one group, then of the other, then what the first one's was before, the very object."""
    for group, of_steps in zip(optimizer.param_groups, ((LR, 0.5, 0.5, LR), (0.25, 0.25, 0.125, 0.125)), strict=True):
        group["lr"] = of_steps[step]


def every_number(optimizer, params, step):
    """Each number of a group is another at each step."""
    group = optimizer.param_groups[1]
    for name in ("lr", "weight_decay", "momentum", "alpha", "rho", "eps", "lr_decay", "momentum_decay"):
        if group.get(name):
            group[name] *= 0.75
    if "betas" in group:
        group["betas"] = tuple(beta * 0.75 for beta in group["betas"])


def other_strides(optimizer, params, step):
    if step % 2:
        params[0].grad = params[0].grad.t().contiguous().t()


def some_without(optimizer, params, step):
    params[step % 4].grad = None


def one_that_comes_late(optimizer, params, step):
    if step < 2:
        params[3].grad = None


def same_tensors(optimizer, params, step):
    """Written again in place."""
    kept = optimizer.__dict__.setdefault("kept_by_the_test", [torch.empty_like(p) for p in params])
    for p, g in zip(params, kept, strict=True):
        p.grad = g.copy_(p.grad)


def data_replaced(optimizer, params, step):
    params[step].data = params[step].data.clone()


def a_group_less(optimizer, params, step):
    if step == 2:
        del optimizer.param_groups[1]


def a_parameter_less(optimizer, params, step):
    if step == 2:
        optimizer.param_groups[0]["params"].pop()


def another_parameter(optimizer, params, step):
    """As code does that replaces layers."""
    if step == 2:
        group = optimizer.param_groups[0]
        fresh = torch.nn.Parameter(params[0].detach() * 2)
        fresh.grad = params[0].grad.clone()
        group["params"][0] = params[0] = fresh


def uphill(optimizer, params, step):
    """A switch is another formula."""
    if "maximize" in optimizer.param_groups[0]:
        optimizer.param_groups[0]["maximize"] = step % 2 == 1


def frozen(optimizer, params, step):
    params[1].requires_grad_(False)
    params[1].grad = None


def momentum_that_begins(optimizer, params, step):
    """SGD without momentum is another routine."""
    if "momentum" in optimizer.param_groups[0]:
        optimizer.param_groups[0]["momentum"] = 0.875 if step >= 2 else 0.0


def momentum_that_ends(optimizer, params, step):
    if step == 2 and "momentum" in optimizer.param_groups[0]:
        optimizer.param_groups[0]["momentum"] = 0.0


def rates_of_fewer(optimizer, params, step):
    """Another rate while one has no gradient; then there are all again."""
    if step in (1, 2):
        params[1].grad = None
    if step == 2:
        optimizer.param_groups[0]["lr"] = 0.5


CHANGES = [rates, rates_of_fewer, every_number, other_strides, some_without, one_that_comes_late, same_tensors,
           data_replaced, a_group_less, a_parameter_less, another_parameter, uphill, frozen, momentum_that_begins,
           momentum_that_ends]


def run(name, change, looks):
    params = parameters(SHAPES)
    optimizer = class_of(name)(in_groups(params), lr=LR, **BUSY[name])
    for step in range(STEPS):
        new_gradients(params, step)
        change(optimizer, params, step)
        held(optimizer) if looks else optimizer.step()
    return all_bits(params, optimizer)


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "NAdam", "LAMB"])
def test_a_change(name, change):
    assert run(name, change, looks=True) == run(name, change, looks=False)


@every_class
def test_every_number_of_every_class(name):
    assert run(name, every_number, looks=True) == run(name, every_number, looks=False)


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
def test_a_change_where_gradients_are_clipped(change):
    """The scan takes the gradients that there are, as `clip_grad_norm_` does."""
    kept = []
    for clips in (True, False):
        params = parameters(SHAPES)
        optimizer = class_of("SGD")(in_groups(params), lr=LR, momentum=0.875, max_norm=0.5 if clips else None)
        for step in range(STEPS):
            new_gradients(params, step)
            change(optimizer, params, step)
            if not clips:
                of_groups = [p for group in optimizer.param_groups for p in group["params"]]
                torch.nn.utils.clip_grad_norm_(of_groups, 0.5)
            optimizer.step()
        kept.append([p.detach() for p in params])
    torch.testing.assert_close(*kept, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "first", "second"), [
    ("AdamW", {"amsgrad": True}, {"amsgrad": False}), ("RMSprop", {"centered": True}, {"centered": False}),
    ("Adam", {}, {"maximize": True}), ("SGD", {"momentum": 0.5}, {"momentum": 0.0}),
    ("SGD", {"momentum": 0.5, "dampening": 0.25}, {"momentum": 0.5}),
    ("SGD", {"momentum": 0.5}, {"momentum": 0.5, "dampening": 0.25}),
    ("Adagrad", {"lr_decay": 0.5}, {}), ("Adagrad", {}, {"lr_decay": 0.5})])
def test_groups_of_other_formulas(name, first, second):
    """Each steps as in an optimizer of its own, but for one norm, whichever gradients are other tensors than before."""
    params, others = parameters(SHAPES), parameters(SHAPES)
    optimizer = class_of(name)([{"params": params[:2], **first}, {"params": params[2:], **second}], lr=LR, max_norm=0.5)
    alone = [class_of(name)(x, lr=LR, **options) for x, options in ((others[:2], first), (others[2:], second))]
    for step in range(3):
        new_gradients(params[:2], step)
        new_gradients(params[2:], step + 10, fresh=False)
        for p, q in zip(params, others, strict=True):
            q.grad = p.grad.clone()
        torch.nn.utils.clip_grad_norm_(others, 0.5)
        for each in (optimizer, *alone):
            each.step()
    torch.testing.assert_close(params, others, rtol=1e-5, atol=1e-6)
    assert [optimizer.state[p].keys() for p in params] == [
        each.state[q].keys() for each in alone for q in each.param_groups[0]["params"]]


def test_refresh():
    """Puts the numbers of groups where a step of a graph reads them, for the parameters of the last step alone."""
    params, optimizer = one("AdamW", SHAPES)
    optimizer.refresh()  # there is nothing yet
    steps(optimizer, params, [0])
    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.refresh()
    (bucket,) = optimizer._buckets
    assert bucket._numbers["lr"] == 0.25
    optimizer.param_groups[0]["params"].pop()
    with pytest.raises(RuntimeError, match="AdamW: refresh: expected the parameters and choices of the last step"):
        optimizer.refresh()


def test_no_step_keeps_an_optimizer_alive():
    """Plans and hooks hold nothing that outlives it."""
    params, optimizer = one("AdamW", SHAPES)
    steps(optimizer, params, [0])
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


def test_gradients_are_not_kept():
    """After ``zero_grad`` their memory is free, as with PyTorch's class."""
    params, optimizer = one("AdamW", SHAPES)
    steps(optimizer, params, [0])
    gradients = [weakref.ref(p.grad) for p in params]
    optimizer.zero_grad()
    assert all(gradient() is None for gradient in gradients)


def test_a_compiled_step_has_the_same_bits():
    """For ``torch.compile`` a step is a break in the graph."""
    both = []
    for wrap in (lambda step: step, lambda step: torch.compile(step, backend="eager")):
        params, optimizer = one("AdamW", SHAPES)
        step = wrap(optimizer.step)
        for number in range(3):
            new_gradients(params, number)
            step()
        both.append(all_bits(params, optimizer))
    assert both[0] == both[1]


@pytest.mark.parametrize("of", [list, tuple])
@pytest.mark.parametrize("name", ["lr", "betas"])
def test_an_option_that_is_written_in_place(name, of):
    """A tensor, a list, and a tuple of tensors: objects that stay where what they say does not."""
    params, others = parameters(SHAPES), parameters(SHAPES)
    rate, betas = torch.tensor(0.25), of([torch.tensor(0.875), 0.9375])
    written = class_of("AdamW")([{"params": params, name: {"lr": rate, "betas": betas}[name]}], lr=0.25)
    plain = class_of("AdamW")([{"params": others, name: {"lr": 0.25, "betas": (0.875, 0.9375)}[name]}], lr=0.25)
    for step in range(4):
        if step == 2:
            rate.fill_(0.5)
            if of is tuple:
                betas[0].fill_(0.5)
            else:
                betas[0] = 0.5
            plain.param_groups[0][name] = {"lr": 0.5, "betas": (0.5, 0.9375)}[name]
        in_turn([step], (params, written), (others, plain))
    assert all_bits(params) == all_bits(others)
