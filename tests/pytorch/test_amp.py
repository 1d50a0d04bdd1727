"""Mixed precision: ``torch.amp.GradScaler``, clipping, and masters of 16-bit parameters.

Scales are powers of two, so that scaled and unscaled gradients give the same bits.
"""


import numpy as np
import pytest

from pytorch.subjects import EVERY, LR, MASTERS, all_bits, bits, class_of, each_exact_kind, every_class, theirs, torch
from pytorch.subjects import ours as module
from pytorch.trials import busy, in_turn, new_gradients, one, pair, parameters, steps, twin
from refopt.cpu.remainder import split
from refopt.torch import merged

INF_AT = {0, 3}  # steps whose gradients overflow


def scaler_of(**named):
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2, **named)


def scaled_gradients(scaler, params, step, overflow=False, only=None):
    """As a backward pass of the scaled loss leaves them."""
    new_gradients(params, step, only=only)
    factor = scaler.scale(torch.ones(()))
    for p in params:
        if p.grad is not None:
            p.grad.mul_(factor.to(p.grad.dtype))
    if overflow:
        params[-1].grad[-1] = float("inf")


def scaled_step(scaler, optimizer, params, *gradients, **named):
    """A step with a scaler's gradients."""
    scaled_gradients(scaler, params, *gradients, **named)
    scaler.step(optimizer)
    scaler.update()


KINDS = [pytest.param(name, {}, id=name) for name in EVERY] + [
    pytest.param("AdamW", {"max_norm": 0.25}, id="clipped"),
    pytest.param("AdamW", {"max_norm": 0.25, "states": "8bit", "shapes": ((3, 40), (33,))}, id="8bit"),
    pytest.param("Muon", {"shapes": ((3, 5), (9, 4)), "max_norm": 0.25}, id="Muon"),
    *(pytest.param("AdamW", {"dtype": getattr(torch, dtype), "masters": masters}, id=f"{dtype}-{masters}")
      for dtype, masters in MASTERS[:3])]


@pytest.mark.parametrize(("name", "how"), KINDS)
def test_a_scaler_of_gradients(name, how):
    """Steps whose gradients overflow are left out and not counted; the others have the bits of unscaled gradients."""
    (params, ours), (others, plain) = pair(name, **how)
    scaler, scales = scaler_of(), []
    for step in range(6):
        scaled_step(scaler, ours, params, step, step in INF_AT)
        scales.append(scaler.get_scale())
        assert getattr(ours, "grad_scale", None) is None and getattr(ours, "found_inf", None) is None
        if step not in INF_AT:
            steps(plain, others, [step])
    assert scales == [512.0, 512.0, 1024.0, 512.0, 512.0, 1024.0]
    assert all_bits(params, ours) == all_bits(others, plain)


@pytest.mark.parametrize("name", ["AdamW", "NAdam", "Adagrad"])
def test_skipped_steps_are_counted_by_parameter(name):
    """Where others have gradients in the step after one that was left out."""
    (params, ours), (others, plain) = pair(name)
    scaler = scaler_of()
    for step, there in enumerate([{0, 1, 3}, {0, 3}, {1, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}, {2, 3}]):
        scaled_step(scaler, ours, params, step, step in (1, 4), there)
        if step not in (1, 4):
            steps(plain, others, [step], only=there)
    assert all_bits(params, ours) == all_bits(others, plain)


@pytest.mark.parametrize(("name", "options"), [("SGD", {}), ("SGD", {"momentum": 0.5}), ("AdamW", {})])
def test_a_skipped_step_beside_pytorchs(name, options):
    """The state after a first step that is left out is that of PyTorch's fused class."""
    states = []
    for kind in (class_of, theirs):
        params = parameters()
        optimizer, scaler = kind(name)(params, lr=LR, fused=True, **options), scaler_of()
        scaled_step(scaler, optimizer, params, 0, overflow=True)
        states.append({i: sorted(entry) for i, entry in optimizer.state_dict()["state"].items()})
        assert all("step" not in optimizer.state[p] or float(optimizer.state[p]["step"]) == 0 for p in params)
        assert all_bits(params) == all_bits(parameters())
    assert states[0] == states[1]


@pytest.mark.parametrize("more", [{}, {"mine": 7}], ids=str)
def test_a_first_step_that_is_left_out_is_ahead(more):
    """Its parameter has no state but what its caller keeps there, and the next step is its first: without dampening."""
    params = parameters(((3,),) * 3)
    optimizer = class_of("SGD")(params, lr=LR, momentum=0.5, dampening=0.25)
    new_gradients(params, 0, only={0})
    first = params[0].grad
    optimizer.step()
    optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.ones(())
    steps(optimizer, params, [1])
    assert [[*entry] for entry in optimizer.state_dict()["state"].values()] == [["momentum_buffer"], [], []]
    for key, x in more.items():
        optimizer.state[params[2]][key] = x
    optimizer.found_inf = torch.zeros(())
    buffers, factors = [first, 0, 0], [0.75, 1, 1]
    for step in (2, 3):
        steps(optimizer, params, [step])
        buffers = [0.5 * x + factor * p.grad for x, factor, p in zip(buffers, factors, params, strict=True)]
        states, factors = optimizer.state_dict()["state"], [0.75] * 3
        torch.testing.assert_close([entry["momentum_buffer"] for entry in states.values()], buffers)
    assert states[2].items() >= more.items()


@every_class
def test_unscaled_before_the_step(name):
    """``unscale_``, clipping by PyTorch, then the step: as without a scaler."""
    (params, ours), (others, plain) = pair(name)
    scaler = scaler_of()
    for step in range(4):
        overflow = step == 2
        scaled_gradients(scaler, params, step, overflow)
        scaler.unscale_(ours)
        torch.nn.utils.clip_grad_norm_(params, 0.5)
        scaler.step(ours)
        scaler.update()
        if not overflow:
            new_gradients(others, step)
            torch.nn.utils.clip_grad_norm_(others, 0.5)
            plain.step()
    assert all_bits(params, ours) == all_bits(others, plain)


def test_a_first_sum_is_not_rounded_to_16_bits():
    (p,) = params = parameters(((3,),), dtype=torch.bfloat16)
    optimizer = class_of("Adagrad")(params, lr=LR, initial_accumulator_value=0.1, masters="fp32")
    p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.equal(optimizer.state[p]["sum"], torch.full((3,), 0.1))
    optimizer.add_param_group({"params": (more := parameters(((3,),), dtype=torch.bfloat16)),
                               "initial_accumulator_value": 0.5})
    more[0].grad = torch.zeros_like(more[0])
    optimizer.step()
    assert [optimizer.state[x]["sum"][0].item() for x in (p, *more)] == pytest.approx([0.1, 0.5])


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64], ids=str)
def test_numbers_of_a_gate_have_their_own_dtype(default):
    """Whatever PyTorch's default is."""
    params, optimizer = one("SGD")
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        scaled_step(scaler_of(), optimizer, params, 0)
        new_gradients(params, 1)
        module.clip_grad_norm_(optimizer, 0.25)
        optimizer.step()
    finally:
        torch.set_default_dtype(before)
    assert all(p.isfinite().all() for p in params)


def test_a_refused_norm_clips_no_later_step():
    (params, optimizer), (others, plain) = pair("SGD")
    params[0].grad = torch.full_like(params[0], float("inf"))
    with pytest.raises(RuntimeError, match="is non-finite"):
        module.clip_grad_norm_(optimizer, 0.25, error_if_nonfinite=True)
    in_turn([0], (params, optimizer), (others, plain))
    assert all_bits(params) == all_bits(others)


def test_the_norm_that_clips_is_computed_with_the_check(monkeypatch):
    """In the same launch; PyTorch computes any other norm."""
    asked = []
    monkeypatch.setattr(merged, "total_norm", lambda *of: asked.append(of) or torch.ones(()))
    for norm_type in (2.0, 1.0):
        params = parameters()
        steps(class_of("SGD")(params, lr=LR, max_norm=0.25, norm_type=norm_type), params, [0])
        assert len(asked) == (norm_type == 1)


@every_class
@pytest.mark.parametrize("max_norm", [0.25, 1e4], ids=["clips", "leaves"])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
def test_clipping(name, max_norm, scaled):
    """``max_norm`` is `clip_grad_norm_` before the step, to few roundings, and leaves gradients as they are."""
    (params, ours), (others, plain) = one(name, max_norm=max_norm), one(name)
    scaler = scaler_of(enabled=scaled)
    for step in range(2):
        scaled_gradients(scaler, params, step)
        given = [bits(p.grad) for p in params]
        scaler.step(ours)
        scaler.update()
        assert [bits(p.grad) for p in params] == given
        new_gradients(others, step)
        torch.nn.utils.clip_grad_norm_(others, max_norm)
        plain.step()
    if max_norm > 100:
        assert all_bits(params, ours) == all_bits(others, plain)
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-5, atol=1e-6)
        for key, state in ours.state[p].items():
            torch.testing.assert_close(state, plain.state[q][key], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "LAMB"])
def test_a_norm_that_is_set(name):
    """Between steps, as an attribute; what cannot be one is refused and changes nothing."""
    norms = None, 0.25, 0.25, None, 1e4, 0.5
    (params, ours), (others, plain) = pair(name)
    for step, norm in enumerate(norms):
        ours.max_norm = norm
        with pytest.raises((TypeError, ValueError), match=f"{name}: max_norm"):
            ours.max_norm = -1.0
        assert ours.max_norm == norm
        others, plain = twin(plain.state_dict(), others, name, max_norm=norm)
        in_turn([step], (params, ours), (others, plain))
        assert all_bits(params) == all_bits(others) and (ours.grad_norm is None) == (norm is None)
    assert all_bits(params, ours) == all_bits(others, plain)
    with pytest.raises(AttributeError):
        ours.masters = "fp32"


def test_an_overflow_on_several_devices():
    """Is a sum of them: the step is left out once, also by a scaler that comes later, and the next ones are counted."""
    params, optimizer = one("AdamW")
    steps(optimizer, params, [0])
    optimizer.grad_scale = torch.ones(())
    for step, found in enumerate((2.0, 0.0), 1):
        optimizer.found_inf = torch.tensor(found)
        steps(optimizer, params, [step])
    assert [float(optimizer.state[p]["step"]) for p in params] == [2.0] * len(params)


NORMS = [{}, {"norm_type": float("inf")}, {"norm_type": 1.0}]


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "float64")])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_any_norm(norm, dtypes):
    """Also of gradients of several dtypes; it is there to be logged."""
    of_dtypes = [getattr(torch, dtype) for dtype in dtypes]
    params, others = ([parameters(((3,),), k, dtype)[0] for k, dtype in enumerate(of_dtypes)] for _ in range(2))
    ours, plain = class_of("SGD")(params, lr=LR, max_norm=0.25, **norm), theirs("SGD")(others, lr=LR)
    assert ours.grad_norm is None
    for step, only in enumerate([None, [0], None]):
        for x in (params, others):
            new_gradients(x, step, only=only)
        expected = torch.nn.utils.clip_grad_norm_(others, 0.25, **norm)
        ours.step()
        plain.step()
        ours.grad_norm.zero_()  # a copy
        torch.testing.assert_close(ours.grad_norm, expected, check_dtype=False)
    torch.testing.assert_close(params, others)


@pytest.mark.parametrize("max_norm", [1e-6, 0.0])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_small_norm(norm, max_norm):
    """A norm is never divided by alone, but with what `clip_grad_norm_` adds to it; 0 clips to 0."""
    params, others = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    for p in (params, others):
        p.grad = torch.full_like(p, 2e-6)
    class_of("SGD")([params], lr=1.0, max_norm=max_norm, **norm).step()
    torch.nn.utils.clip_grad_norm_([others], max_norm, **norm)
    theirs("SGD")([others], lr=1.0).step()
    torch.testing.assert_close(params, others, rtol=1e-4, atol=0)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_norm_of_scaled_gradients(norm):
    """Is that of the gradients as they would be without a scaler."""
    found = []
    for scaler in (None, scaler_of()):
        params, optimizer = one("AdamW", max_norm=0.25, **norm)
        if scaler:
            scaled_step(scaler, optimizer, params, 0)
        else:
            steps(optimizer, params, [0])
        found.append((optimizer.grad_norm.item(), all_bits(params)))
    assert found[0] == found[1]


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_norm_that_is_not_finite(norm):
    """Raises as in PyTorch if it is asked to, before anything has changed."""
    (params, optimizer), (others, plain) = pair("AdamW", max_norm=0.25, error_if_nonfinite=True, **norm)
    in_turn([0], (params, optimizer), (others, plain))
    new_gradients(params, 1)
    params[0].grad[0, 0] = float("inf")
    with pytest.raises(RuntimeError, match="is non-finite, so it cannot be clipped"):
        optimizer.step()
    assert all_bits(params, optimizer) == all_bits(others, plain)
    in_turn([2], (params, optimizer), (others, plain))
    assert all_bits(params, optimizer) == all_bits(others, plain)


def test_a_norm_of_several_optimizers():
    """Is clipped in the next step of each, and in no other."""
    params, others = parameters(), parameters()
    pair, plain = ([class_of("SGD")(x[:2], lr=LR), class_of("AdamW")(x[2:], lr=LR)] for x in (params, others))
    for step in range(4):
        for x in (params, others):
            new_gradients(x, step)
        if step % 2:
            found = module.clip_grad_norm_(pair, 0.25)
            torch.testing.assert_close(found, torch.nn.utils.clip_grad_norm_(others, 0.25))
        for optimizer in (*pair, *plain):
            optimizer.step()
    torch.testing.assert_close(params, others)


@pytest.mark.parametrize("unscales", [True, False])
def test_a_norm_of_one_optimizer_under_a_scaler(unscales):
    """The step clips the norm without the scale, whether gradients have been unscaled or not."""
    (params, optimizer), (others, plain) = one("SGD"), one("SGD", max_norm=0.25)
    scaler, other = scaler_of(), scaler_of()
    assert module.clip_grad_norm_(optimizer, 1e4, error_if_nonfinite=True) == 0, "without gradients"
    params[0].grad = torch.full_like(params[0], float("nan"))
    with pytest.raises(RuntimeError, match="is non-finite"):
        module.clip_grad_norm_(optimizer, 1e4, error_if_nonfinite=True)
    scaled_gradients(scaler, params, 0)
    if unscales:
        scaler.unscale_(optimizer)
    module.clip_grad_norm_(optimizer, 0.25)
    scaler.step(optimizer)
    scaled_step(other, plain, others, 0)
    torch.testing.assert_close(params, others)


@pytest.mark.parametrize(("given", "text"), [
    ({"max_norm": -1.0}, "max_norm: expected a number of at least 0, got -1.0"),
    ({"norm_type": 0}, "norm_type: expected a number above 0, got 0"),
    ({"optimizers": [None]}, r"optimizers\[0\]: expected an optimizer of refopt.torch, got NoneType")])
def test_a_wrong_norm_of_several(given, text):
    with pytest.raises((TypeError, ValueError), match=f"clip_grad_norm_: {text}"):
        module.clip_grad_norm_(**{"optimizers": [one("SGD")[1]], "max_norm": 1.0} | given)
    both = [one("SGD")[1], one("SGD", max_norm=0.5)[1]]
    with pytest.raises(ValueError, match=r"clip_grad_norm_: optimizers\[1\]: expected one without max_norm, got 0.5"):
        module.clip_grad_norm_(both, 1.0)
    assert both[0]._given is None  # a refused call clips nothing


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_clipping_beside_nan(norm):
    """NaN stays in its element; `clip_grad_norm_` spreads it."""
    params, others = parameters(), parameters()
    ours, plain = class_of("SGD")(params, lr=LR, max_norm=0.25, **norm), class_of("SGD")(others, lr=LR)
    for x, optimizer in ((params, ours), (others, plain)):
        new_gradients(x, 0)
        x[-1].grad[-1] = float("nan")
        optimizer.step()
    assert all_bits(params) == all_bits(others) and params[-1].isnan().sum() == 1


@pytest.mark.parametrize("name", [name for name in [*EVERY, "Muon"] if name != "LARS"])
@each_exact_kind
def test_masters(name, dtype, masters):
    """The master is what an fp32 parameter would be that has the same gradients; the parameter is that, rounded.

    But for LARS, which takes the norm of the stored parameter.
    """
    dtype = getattr(torch, dtype)
    params, ours = one(name, dtype=dtype, masters=masters)
    wide = [torch.nn.Parameter(p.detach().float()) for p in params]
    plain = busy(name, wide)
    for step in range(3):
        new_gradients(params, step)
        for p, q in zip(params, wide, strict=True):
            q.grad = p.grad.float()
        ours.step()
        plain.step()
    for p, q in zip(params, wide, strict=True):
        entry, exact = ours.state[p], q.detach()
        if masters == "fp32":
            assert bits(entry["master_param"]) == bits(exact) and bits(p) == bits(exact.to(dtype))
        else:
            stored, rest = split(exact.numpy())
            assert p.detach().view(torch.int16).numpy().tobytes() == stored.tobytes()
            assert np.asarray(entry["master_param"]).tobytes() == rest.tobytes()
        for key, state in plain.state[q].items():
            assert bits(entry[key]) == bits(state), key


def test_masters_that_cannot_be_are_refused():
    """By the argument's name, and that of the parameter."""
    with pytest.raises(ValueError, match=r"AdamW: masters: expected .*remainder.*, got 'fp16'"):
        class_of("AdamW")(parameters(), masters="fp16")
    for wrong in (-1.0, "1"):
        with pytest.raises((TypeError, ValueError), match="AdamW: max_norm"):
            class_of("AdamW")(parameters(), max_norm=wrong)
