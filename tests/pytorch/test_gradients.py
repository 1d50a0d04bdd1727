"""Gradients and parameters of every kind that a model has: none, late, in several dtypes, of any size and strides."""

import numpy as np
import pytest

from pytorch.subjects import BETAS, BUSY, LR, all_bits, bits, class_of, drawn, every_class, ours, torch
from pytorch.trials import assert_alike, held, held_step, new_gradients, one, pair, parameters, steps
from refopt import cpu

SKIPPED = {0: {0, 3}, 1: {0, 1}, 2: set(), 3: {0, 1, 2, 3}, 4: {1}, 5: {0, 1, 2, 3}}  # which have gradients, by step


@every_class
def test_gradients_that_are_none_or_appear_later(name):
    """A parameter without one keeps every bit and has no step counted; the others go on as if they were alone."""
    params, optimizer = one(name)
    for step, there in SKIPPED.items():
        held_step(optimizer, params, step, only=there)
    for i, p in enumerate(params):
        alone = parameters()[i]
        single = class_of(name)([alone], lr=LR, **BUSY[name])
        for step, there in SKIPPED.items():
            if i in there:
                others = parameters()
                new_gradients(others, step)
                alone.grad = others[i].grad
                single.step()
        assert bits(p) == bits(alone) and all_bits([p], optimizer) == all_bits([alone], single)


@every_class
def test_several_dtypes_in_one_model(name):
    """Each parameter is stepped as in an optimizer of its own."""
    shapes, dtypes = ((3,), (2, 3), (), (4,), (5,)), ("float32", "float16", "float64", "bfloat16", "float32")

    def mixed():
        return [torch.nn.Parameter(p.detach().to(getattr(torch, d)))
                for p, d in zip(parameters(shapes), dtypes, strict=True)]

    params, others = mixed(), mixed()
    optimizer = class_of(name)(params, lr=LR, **BUSY[name])
    alone = [class_of(name)([p], lr=LR, **BUSY[name]) for p in others]
    for step in range(2):
        new_gradients(params, step)
        new_gradients(others, step)
        optimizer.step()
        for single in alone:
            single.step()
    assert [p.dtype for p in params] == [getattr(torch, d) for d in dtypes]
    assert all_bits(params) == all_bits(others)


@every_class
@pytest.mark.parametrize("shapes", [((0,), (), (1,), (0, 3), (1, 1, 1), (257,), (2, 0, 5), (33, 2)), ((0,), (3, 0))])
def test_sizes(name, shapes):
    """Parameters of no element, of no dimension, and of more elements than a thread takes."""
    params, optimizer = one(name, shapes)
    for step in range(2):
        held_step(optimizer, params, step)


def strided(x, how):
    """The numbers of a tensor in other strides."""
    if how == "contiguous":
        return x.clone(memory_format=torch.contiguous_format)
    if how == "channels_last":
        return x.clone(memory_format=torch.channels_last)
    if how == "transposed":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if how == "expanded":
        return x[:, :, :1].expand_as(x)
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]  # with gaps


WITH_NORMS = "LARS", "LAMB", "NovoGrad"
DENSE = "contiguous", "channels_last", "transposed"


@every_class
@pytest.mark.parametrize("of_parameter", DENSE)
def test_strides(name, of_parameter):
    """Parameters and gradients may lie in memory in any order, each in its own: the numbers are the same.

    So are the bits, but for routines with norms, which sum in the order of memory.
    """
    x = drawn((2, 3, 2, 2), torch.Generator().manual_seed(0))
    p, q = torch.nn.Parameter(strided(x, of_parameter)), torch.nn.Parameter(x.clone())
    optimizer, other = (class_of(name)([one], lr=LR, **BUSY[name]) for one in (p, q))
    strides = p.stride()
    for step, of_gradient in enumerate((*DENSE, "gaps", "expanded")):
        g = drawn((2, 3, 2, 2), torch.Generator().manual_seed(10 + step))
        g = g[:, :, :1].expand_as(g) if of_gradient == "expanded" else g
        p.grad, q.grad = strided(g, of_gradient), g.clone()
        given = p.grad.clone()
        held(optimizer)
        other.step()
        assert torch.equal(p.grad, given) and p.stride() == strides
        if name not in WITH_NORMS:
            same = [torch.equal(state, other.state[q][key]) for key, state in optimizer.state[p].items()]
            assert torch.equal(p, q) and all(same), of_gradient


def test_a_gradient_of_other_strides_is_copied_once():
    """The next step takes the gradient of then, also where another parameter has none."""
    params, others = parameters(((3, 4), (2,))), parameters(((3, 4), (2,)))
    ours, plain = (class_of("SGD")(x, lr=LR) for x in (params, others))
    for step, only in enumerate([{0}, {0, 1}, {0}, {0, 1}, {0}]):
        for x in (params, others):
            new_gradients(x, step, only=only)
        if step % 2:
            params[0].grad = strided(params[0].grad, "transposed")
        ours.step()
        plain.step()
    assert all_bits(params) == all_bits(others)


@pytest.mark.parametrize("name", ["SGD", "LAMB"])
def test_parameters_with_gaps_are_refused(name):
    """At construction, by name."""
    wide = torch.ones(3, 4)
    for x in (wide[:, ::2], wide[:, :3], torch.ones(1).expand(4)):
        with pytest.raises(TypeError, match=rf"{name}: param_groups\[0\].*: expected no gaps or overlaps"):
            class_of(name)([torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(x)], lr=LR)


def test_views_of_one_storage():
    """Parameters that are parts of one tensor, as flattened ones are: side by side, or with what stays between them."""
    flat = torch.arange(1.0, 21.0)
    kept = flat.clone()
    params = [torch.nn.Parameter(flat[1:7].view(2, 3)), torch.nn.Parameter(flat[7:9]), torch.nn.Parameter(flat[11:15])]
    others = [torch.nn.Parameter(p.detach().clone()) for p in params]
    assert_alike(params, others)
    untouched = [0, 9, 10, *range(15, 20)]
    assert torch.equal(flat[untouched], kept[untouched])


@every_class
def test_what_is_not_finite(name):
    """NaN and infinities go where the formula takes them, in their elements alone, for routines without norms."""
    (params, ours), (others, plain) = pair(name, ((6,), (2,)))
    for step in range(2):
        new_gradients(params, step)
        new_gradients(others, step)
        if step == 0:
            params[0].grad[1:4] = torch.tensor([float("nan"), float("inf"), -float("inf")])
        ours.step()
        plain.step()
    assert bits(params[1]) == bits(others[1])
    if name not in WITH_NORMS:
        assert not params[0][1:4].isfinite().all() and params[0][[0, 4, 5]].isfinite().all()
        assert bits(params[0][[0, 4, 5]]) == bits(others[0][[0, 4, 5]])


def test_a_parameter_is_the_same_object():
    """Autograd sees that it was written: what was computed with it before cannot be differentiated after."""
    p, q = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = class_of("SGD")([p, q], lr=LR)
    steps(optimizer, [p, q], [0])
    loss = (p * p).sum()
    p.grad, q.grad = torch.ones(3), None
    versions = p._version, q._version
    optimizer.step()
    assert p._version > versions[0] and q._version == versions[1], "that of one that is not written stays"
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(("name", "options"), [("AdamW", BETAS), ("Adam", {"eps": 0}), ("Adagrad", {"lr_decay": 0.5}),
                                               ("SGD", {}), ("SGD", {"momentum": 0.875, "dampening": 0.5})])
def test_lazy_steps(name, options):
    """Are the reference's (N22), also from a checkpoint and under a scaler; dense gradients beside take usual ones."""
    params, (of_peer, *others), (table, _) = (parameters(((7, 3), (2, 2))) for _ in range(3))
    optimizer, alone = (class_of(name)(x, lr=LR, sparse=y, **options) for x, y in ((params, "rows"), (others, None)))
    peer, formula = torch.optim.SparseAdam([of_peer], lr=LR, eps=1e-30), alone.formula(alone.param_groups[0])
    own = {x.name: [np.full(1 if x.scalar else (7, 3), formula.numbers.get(x.initial, x.initial or 0), np.float32)]
           for x in formula.row.slots[2:] if not x.optional}
    for step, taken in enumerate([0, 1, 0, 2, 3]):  # by the table, which has no gradient at first, then a skipped one
        rows, values = torch.tensor([5, 1, 5, 0, 1, step, 5]), drawn((7, 3), torch.Generator().manual_seed(step))
        of_peer.grad = torch.sparse_coo_tensor(rows[None], values, (7, 3), check_invariants=True)
        new_gradients([*params, *others], step)
        params[0].grad, others[0].grad = (2 * of_peer.grad if step else None), params[1].grad
        for each in (optimizer, alone):
            each.grad_scale, each.found_inf = torch.tensor(2.0), torch.tensor(float(step == 2))
            each.step()
        if taken:
            given = *([x.detach().numpy()] for x in (table, rows, values)), *own.values()
            cpu.merged_lazy(formula.routine, *given, **{x: formula.number_at(x, taken) for x in formula.numbers})
            peer.step()
        if step == 3:
            saved, optimizer = optimizer.state_dict(), class_of(name)(params, lr=LR, sparse="rows", **options)
            optimizer.load_state_dict(saved)
    assert bits(params[0]) == bits(table) and bits(params[1]) == bits(others[0])
    assert all(bits(optimizer.state[params[0]][x]) == bits(torch.tensor(own[k][0])) for k, x in formula.states.items())
    assert name != "Adam" or torch.allclose(params[0], of_peer, rtol=1e-5, atol=1e-5)
    assert ours.clip_grad_norm_([optimizer], 1).isclose(torch.cat([x.grad.to_dense().flatten() for x in params]).norm())
