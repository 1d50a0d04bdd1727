"""Steps that are right but for one defect of their implementation, each with the law that finds it."""

import functools
import itertools

import numpy as np

from refopt import catalog, cpu
from refopt.cpu import reduce
from refopt.cpu.merged import merged as run_rule
from refopt.oracle.bound.evaluate import rule_of

PLANTED = []


def planted(law, routine, dtype="float32", clean=True):
    """Name the law that has to fail; ``clean`` says that the step law holds."""

    def decorate(wrong):
        right = getattr(cpu, f"merged_{routine}")

        @functools.wraps(right)
        def step(*lists, **named):
            return wrong(right, *lists, **named)

        step.__qualname__ = step.__name__ = wrong.__name__
        PLANTED.append((law, routine, dtype, clean, step))
        return wrong

    return decorate


def picked(indices, lists, named):
    """Some tensors of all lists."""
    lists = [[values[i] for i in indices] for values in lists]
    return lists, {k: [v[i] for i in indices] if isinstance(v, list) else v for k, v in named.items()}


# Lists.


@planted("L3", "adamw")
def tensors_after_the_110th_dropped(right, *lists, **named):
    lists, named = picked(range(min(110, len(lists[0]))), lists, named)
    right(*lists, **named)


@planted("L3", "adamw")
def states_of_the_tensor_before_beyond_110(right, params, grads, first, second, *powers, **named):
    for i in range(len(params)):
        k = i - 1 if i >= 110 and params[i - 1].shape == params[i].shape else i
        one, others = picked([i], [params, grads, [*first[:i], first[k]], [*second[:i], second[k]], *powers], named)
        right(*one, **others)


@planted("L3", "momentum")
def the_last_launch_missing_where_the_last_tensor_is_empty(right, *lists, **named):
    sizes = [x.size for x in lists[0]]
    if sizes and sizes[-1] == 0:
        lists, named = picked(range(len(sizes) // 36 * 36), lists, named)
    right(*lists, **named)


@planted("L3", "sgd")
def an_empty_tensor_ends_the_list(right, *lists, **named):
    sizes = [x.size for x in lists[0]]
    stop = sizes.index(0) if 0 in sizes else len(sizes)
    lists, named = picked(range(stop), lists, named)
    right(*lists, **named)


@planted("L3", "lion")
def no_tensor_is_an_error(right, *lists, **named):
    lists[0][0].shape  # noqa: B018
    right(*lists, **named)


@planted("L2", "lamb")
def one_norm_of_all_tensors(right, params, grads, m, u, b1, b2, **named):
    """The trust ratio is that of the whole list."""
    shapes = [p.shape for p in params]
    whole = [np.concatenate([x.reshape(-1) for x in values]) for values in (params, grads, m, u)]
    if not shapes:
        return
    powers = [b1[0].copy()], [b2[0].copy()]
    numbers = {k: v[0] if isinstance(v, list) else v for k, v in named.items()}
    right(*([x] for x in whole), *powers, **numbers)
    ends = np.cumsum([0, *(int(np.prod(s)) for s in shapes)])
    for values, x in zip((params, m, u), (whole[0], whole[2], whole[3]), strict=True):
        for i, y in enumerate(values):
            y[...] = x[ends[i] : ends[i + 1]].reshape(y.shape)
    for values, beta in ((b1, named["beta1"]), (b2, named["beta2"])):
        for x in values:
            x *= x.dtype.type(beta)


@planted("L2", "sgd")
def the_order_of_the_list_shows(right, params, grads, **named):
    right(params, grads, **named)
    for k, p in enumerate(params):
        p *= p.dtype.type(1 + k * 2.0**-24)  # less than the bound


# Sizes.


def sum_of_65536(values):
    return reduce.tree_sum(reduce.tile_sums(values[:65536] * values[:65536]))


def with_sum(rule, total):
    """A rule whose sums of squares are others."""
    import types

    names = rule.__globals__ | {"sum_of_squares": total}
    copy = types.FunctionType(rule.__code__, names, rule.__name__, rule.__defaults__, rule.__closure__)
    copy.__kwdefaults__ = rule.__kwdefaults__
    return copy


def of_a_rule(routine, rule, lists, named):
    row = catalog.ROUTINES[routine]
    required = [slot.name for slot in row.slots if not slot.optional]
    slots = dict(zip(required, lists, strict=True))
    slots |= {slot.name: named.pop(slot.name, None) for slot in row.slots if slot.optional}
    gate = named.pop("grad_factor", None), named.pop("found_inf", None)
    run_rule(row, rule, slots, named, *gate)


@planted("L5", "lamb")
def a_norm_of_the_first_65536_elements(right, *lists, **named):
    of_a_rule("lamb", with_sum(rule_of(catalog.LAMB), sum_of_65536), lists, named)


@planted("L5", "novograd")
def the_same_in_novograd(right, *lists, **named):
    of_a_rule("novograd", with_sum(rule_of(catalog.NOVOGRAD), sum_of_65536), lists, named)


@planted("L5", "adamw", clean=False)
def a_tail_is_left(right, *lists, **named):
    vectors = [[x.reshape(-1)[: x.size // 4 * 4] if x.size > 1 else x for x in values] for values in lists[:4]]
    scalars = {k: [x.reshape(-1)[: x.size // 4 * 4] for x in v] if isinstance(v, list) and hasattr(v[0], "size") else v
               for k, v in named.items()}  # fmt: skip
    right(*vectors, *lists[4:], **scalars)


@planted("L5", "sgd")
def sixteen_bits_of_an_index(right, *lists, **named):
    right(*([x.reshape(-1)[: 2**16] if x.size > 2**16 else x for x in values] for values in lists), **named)


@planted("L1", "sgd", "bfloat16", clean=False)
def blocks_of_16_never_written(right, params, grads, **named):
    """As in pytorch #191763."""
    kept = [p.copy() for p in params]
    right(params, grads, **named)
    for p, old in zip(params, kept, strict=True):
        if p.dtype.itemsize == 2 and p.flags.c_contiguous:
            for start in range(32, p.size - 15, 48):
                p.reshape(-1)[start : start + 16] = old.reshape(-1)[start : start + 16]


# Layouts.


@planted("L4", "adamw")
def what_is_not_contiguous_is_copied(right, *lists, **named):
    right(*([np.ascontiguousarray(x).reshape(x.shape) for x in values] for values in lists), **named)


@planted("L4", "momentum")
def only_the_first_row(right, *lists, **named):
    right(*([x[0] if x.ndim > 1 and x.size else x for x in values] for values in lists), **named)


@planted("L4", "adagrad")
def no_dimension_is_no_element(right, *lists, **named):
    keep = [i for i, p in enumerate(lists[0]) if p.ndim]
    lists, named = picked(keep, lists, named)
    right(*lists, **named)


@planted("L4", "sgd")
def what_is_misaligned_begins_later(right, params, grads, **named):
    shift = [p.ctypes.data % 16 // p.itemsize if p.flags.c_contiguous else 0 for p in params]
    right([p.reshape(-1)[s:] if s else p for p, s in zip(params, shift, strict=True)],
          [g.reshape(-1)[s:] if s else g for g, s in zip(grads, shift, strict=True)], **named)  # fmt: skip


@planted("L4", "sgd")
def an_element_too_many(right, params, grads, **named):
    right(params, grads, **named)
    for p in params:
        if not p.flags.owndata and p.ndim == 1 and p.size:  # between guards
            np.lib.stride_tricks.as_strided(p, (p.size + 1,), p.strides)[-1] = 0


@planted("L4", "momentum")
def gradients_are_scaled_in_place(right, params, grads, velocities, **named):
    for p, g in zip(params, grads, strict=True):
        if g is not None:
            decay = g.dtype.type(0 if isinstance(named["l2_decay"], list) else named["l2_decay"])
            g += (-decay if named["maximize"] else decay) * p  # whose sign is turned with the gradient's
    right(params, grads, velocities, **named | ({"l2_decay": 0.0} if not isinstance(named["l2_decay"], list) else {}))


# NaN and subnormal numbers.


@planted("L6", "adamw")
def nan_is_taken_for_0(right, params, grads, *states, **named):
    grads = [g if g is None else np.nan_to_num(g, nan=0.0, posinf=np.inf, neginf=-np.inf) for g in grads]
    right(params, grads, *states, **named)


@planted("L6", "sgd")
def nan_spreads_over_its_tensor(right, params, grads, **named):
    right(params, grads, **named)
    for p in params:
        if np.isnan(p.astype(np.float32)).any():
            p[...] = np.nan


@planted("L7", "sgd")
def subnormal_numbers_are_flushed(right, params, grads, **named):
    right(params, grads, **named)
    for p in params:
        p[...] = np.where(abs(p) < np.finfo(p.dtype).tiny, 0, p)


# The gate and the factors.


@planted("L8", "adamw")
def found_inf_ignored(right, *lists, found_inf=None, **named):
    right(*lists, **named)


@planted("L8", "adamw")
def found_inf_of_nan_ignored(right, *lists, found_inf=None, **named):
    if found_inf is None or not found_inf[0] > 0:
        right(*lists, **named)


@planted("L8", "momentum")
def momentum_advanced_on_skipped_steps(right, params, grads, velocities, *, found_inf=None, **named):
    skipped = found_inf is not None and found_inf[0] != 0
    right([p.copy() for p in params] if skipped else params, grads, velocities, **named)


@planted("L8", "adamw")
def powers_advanced_on_skipped_steps(right, *lists, found_inf=None, **named):
    right(*lists, found_inf=found_inf, **named)
    if found_inf is not None and found_inf[0] != 0:
        for x in lists[4]:
            x *= x.dtype.type(named["beta1"])


@planted("L9", "adamw")
def grad_factor_ignored(right, *lists, grad_factor=None, **named):
    right(*lists, **named)


@planted("L9", "adamw")
def rescale_grad_ignored(right, *lists, rescale_grad=1.0, **named):
    right(*lists, **named)


@planted("L9", "lamb")
def the_factor_in_the_first_moment_alone(right, params, grads, m, u, b1, b2, *, grad_factor=None, **named):
    kept = [x.copy() for x in u]
    right(params, grads, m, kept, [x.copy() for x in b1], [x.copy() for x in b2], grad_factor=grad_factor, **named)
    right([p.copy() for p in params], grads, [x.copy() for x in m], u, b1, b2, **named)


# Storage.


@planted("L10", "adam", "float16", clean=False)
def states_rounded_through_the_parameters_dtype(right, params, grads, m, u, *powers, **named):
    """As Apex's capturable Adam has it."""
    right(params, grads, m, u, *powers, **named)
    for p, *states in zip(params, m, u, strict=True):
        for x in states:
            x[...] = x.astype(p.dtype)


@planted("L10", "sgd")
def gradients_read_in_the_parameters_dtype(right, params, grads, **named):
    if any(g is not None and g.dtype != p.dtype for p, g in zip(params, grads, strict=True)):
        grads = [g.view(np.uint16).astype(np.float32) if g.dtype.itemsize == 2 else g for g in grads]
    right(params, grads, **named)


@planted("L11", "adamw", "bfloat16")
def parameters_cut_off_from_their_masters(right, params, *lists, master_params=None, **named):
    right(params, *lists, master_params=master_params, **named)
    for p, x in zip(params, master_params or [None] * len(params), strict=True):
        if x is not None and x.dtype == np.float32:
            p[...] = (x.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(p.dtype)


@planted("L11", "momentum", "float16")
def masters_taken_from_the_parameters(right, params, grads, velocities, *, master_params=None, **named):
    for p, x in zip(params, master_params or [None] * len(params), strict=True):
        if x is not None and x.dtype == np.float32:
            x[...] = p
    right(params, grads, velocities, master_params=master_params, **named)


@planted("L12", "sgd", "bfloat16")
def remainders_forgotten(right, params, grads, *, master_params=None, **named):
    for x in master_params or ():
        if x is not None and x.dtype == np.uint16:
            x[...] = 0
    right(params, grads, master_params=master_params, **named)


@planted("L13", "momentum", "bfloat16")
def rounded_down_always(right, params, *lists, rounding="nearest", **named):
    if rounding == "nearest":
        return right(params, *lists, **named)
    wide = [p.astype(np.float32) for p in params]
    right(wide, *lists, **named)
    for p, x in zip(params, wide, strict=True):
        p[...] = (x.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(p.dtype)


@planted("L13", "sgd", "bfloat16")
def the_seed_ignored(right, *lists, seed=0, **named):
    right(*lists, seed=7, **named)


# Calls.


@planted("L14", "adamw")
def the_rate_of_the_first_tensor(right, *lists, lr, **named):
    right(*lists, lr=lr[0] if isinstance(lr, list) else lr, **named)


@planted("L15", "adamw")
def no_gradient_is_a_zero(right, params, grads, *states, **named):
    grads = [np.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]
    right(params, grads, *states, **named)


HIDDEN = {}


@planted("L16", "momentum", "float16")
def a_state_kept_beside_what_is_stored(right, params, grads, velocities, **named):
    """In fp32, as long as the arrays are the same."""
    wide = []
    for v in velocities:
        kept = HIDDEN.get(v.ctypes.data)
        wide.append(kept if kept is not None and (kept.astype(v.dtype) == v).all() else v.astype(np.float32))
    right(params, grads, wide, **named)
    HIDDEN.clear()
    for v, x in zip(velocities, wide, strict=True):
        v[...] = x.astype(v.dtype)
        HIDDEN[v.ctypes.data] = x


CALLS = itertools.count()


@planted("L17", "sgd", clean=False)
def another_rounding_each_time(right, params, grads, **named):
    right(params, grads, **named)
    for p in params:
        p *= p.dtype.type(1 + next(CALLS) % 2 * 2.0**-23)
