"""Small programs, what is in their arrays, and the laws of passes."""

from functools import lru_cache, partial

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from refopt import gpu
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import numpy_dtype
from refopt.comm import local
from refopt.oracle.exact.build import step_of
from refopt.program import UNKNOWN, bind, passes, step_program

PARAMS = [("a.w", (5, 3)), ("a.b", (7,)), ("b.w", (70,)), ("c", (1,)), ("b.v", (2, 2, 2)), ("d.e.f", (64,))]
EARLY = "adam", "adamw", "lamb", "adamax"  # whose scalars are powers of beta


def numbers_of(optimizer, **changed):
    """Hyperparameters, none of them at its default."""
    numbers = step_of(ROUTINES[optimizer], **changed)
    numbers.pop("seed", None)
    return numbers


def adam(params=PARAMS, **options):
    """A step of Adam."""
    return step_program(params, "adam", **{**numbers_of("adam"), **options})


def edited(program, change, *vars):
    """The program with more variables, and with each op replaced by what ``change`` makes of it: a list."""
    return program.with_vars(vars).replace(main=[new for op in program.main for new in change(op)])


@lru_cache(2**14)
def normal(shape, seed):
    """Random numbers, not to be written: every rank and every run that is compared draws the same."""
    return np.random.default_rng(list(seed)).normal(size=shape)


def values(dtype, shape, *seed):
    return normal(shape, seed).astype(numpy_dtype(dtype))


def arrays_of(program, seed=0):
    """What the caller has to bring, and the states, none of them at its initial value."""
    own = {name: x for name, x in program.vars.items() if x.persistable and x.initial is None and x.shape != UNKNOWN}
    return {name: values(var.dtype, var.shape, seed, *map(ord, name)) for name, var in own.items()}


def gradients_of(program, rank, seed=0):
    """Gradients of a rank, other ones in each step."""

    def gradient(name, step):
        var, start = program.vars[name], (seed, step, rank, *map(ord, name))
        if not var.sparse:
            return values(var.dtype, var.shape, *start)
        rows = np.random.default_rng(list(start)).integers(0, var.shape[0], (step + rank + seed) % 4)
        return rows, values(var.dtype, (len(rows), *var.shape[1:]), *start)

    return gradient


def put(backend, arrays):
    """New arrays of a side."""
    return {name: gpu.to_device(x) if backend == "gpu" else x.copy() for name, x in arrays.items()}


def started(program, arrays, **options):
    """The program bound to arrays, started."""
    bound = bind(program, arrays, **options)
    bound.startup()
    return bound


def bound_on(program, world=None, backend="cpu", arrays=None, seed=0):
    """The program bound on a rank, started."""
    brought = put(backend, arrays_of(program, seed) if arrays is None else arrays)
    rank = world.rank if world else 0
    return started(program, brought, backend=backend, comm=world, gradients=gradients_of(program, rank, seed))


def stepped(bound, steps=2, at=1, **numbers):
    """The bound program after some steps, of which one is given other numbers, if it has updates."""
    updates = any("lr" in op.attrs for op in bound.program.main)
    for k in range(steps):
        bound.step(**(numbers if k == at and updates else {}))
    return bound


def read(bound):
    """The bits of everything that lives from step to step."""
    vars = bound.program.vars.values()
    return {var.name: bound.read(var.name).tobytes() for var in vars if var.persistable and var.shape != UNKNOWN}


def on_ranks(size, function, **options):
    """What a function of a communicator returns on each rank; of none, if there is one rank."""
    return [function(None)] if size == 1 else local.run(function, size, **options)


def ranks_of(program):
    return next((op.attrs["ranks"] for op in program.main if "ranks" in op.attrs), 1)


def outcome(program, steps=2, backend="cpu", seed=0, change=None, **options):
    """What is in all arrays after some steps: on every rank the same."""

    def rank(world):
        bound = bound_on(program, world, backend, seed=seed)
        if change is not None:
            change(bound)
        return read(stepped(bound, steps, 2, lr=0.25))

    first, *others = on_ranks(ranks_of(program), rank, **options)
    assert all(other == first for other in others), "ranks differ"
    return first


# The laws.


def same_bits(apply, program, steps=2, backend="cpu", seed=0):
    """A pass changes no bit of what a step computes (numerics, N11)."""
    changed = apply(program).program
    changed.check()
    expected, got = outcome(program, steps, seed=seed), outcome(changed, steps, backend, seed=seed)
    assert expected.keys() == got.keys()
    different = [name for name in expected if expected[name] != got[name]]
    assert not different, f"N11: {different} differ"


def idempotent(apply, program):
    """The second time, a pass does nothing."""
    once = apply(program)
    twice = apply(once.program)
    assert twice.program == once.program and not twice.applied, "not idempotent"


def untouched(apply, program):
    """The program that a pass is given stays as it is, and comes back if nothing was done."""
    before = program.replace()
    result = apply(program)
    assert program == before, "the input has changed"
    assert result.applied == (result.program != program)
    assert result.applied or (result.program is program and result.reasons), "declined without a reason"


def everything(form="auto", grouping="later", **flags):
    """All passes, as one function of a program."""
    return lambda program: passes.pipeline(program, partial(passes.coalesce_gradients, grouping=grouping, **flags),
                                           passes.fuse_all_reduce, partial(passes.fuse_optimizer, form=form))


# Hypothesis.


def few(count):
    """A number of examples in proportion to those of the profile: ``count`` for each 25."""
    return settings(max_examples=count * settings().max_examples // 25, suppress_health_check=list(HealthCheck))


GROUPINGS = st.one_of(
    st.builds(lambda m, g: ("early", dict(memory_size=m, groups_size=g)),
              st.sampled_from([0, 1, 100, 256, 300, 4096]), st.sampled_from([-1, 1, 2, 3])),
    st.builds(lambda m, g: ("later", dict(memory_size=m, groups_size=g)),
              st.sampled_from([-1.0, 0.0, 1e-5, 2**-12, 3e-4, 2**-8]), st.sampled_from([1, 2, 3])),
    st.builds(lambda x: ("fuse_size", dict(limit=x)), st.sampled_from([1e-5, 2e-4, 32.0])),
    st.builds(lambda n: ("by_count", dict(count=n)), st.integers(1, 6)),
    st.builds(lambda a, b: ("ddp", dict(bucket_cap_mb=a, first_bucket_mb=b)),
              st.sampled_from([1e-4, 25.0]), st.sampled_from([1e-5, 1.0])))


def shapes():
    """Small ones, and those whose bytes are just what a buffer is aligned to on a device or a host, or one element off.

    Equal ones come often, as in a model: what chooses the largest or the first has to decide.
    """
    aligned = [64, 128, 1024, 2048]
    edges = [(n + k,) for n in aligned for k in (-1, 0, 1)] + [(4, 16), (16, 64), (2, 3, 7)]
    return st.one_of(st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from(edges), st.just((3, 2)))


@st.composite
def programs(draw, max_tensors=5, ranks=8, optimizers=tuple(ROUTINES), mixed=True):
    """Steps of a few tensors: any routine, or two, any dtypes, numbers of some parameters apart."""
    names = draw(st.lists(st.sampled_from(["a.w", "a.b", "b.w", "b.v", "c", "d", "e.f.g"]), min_size=1,
                          max_size=max_tensors, unique=True))
    params = [(name, draw(shapes())) for name in names]
    first, second = draw(st.sampled_from(optimizers)), draw(st.sampled_from(optimizers))
    which = {name: draw(st.sampled_from([first, first, second])) for name in names}
    numbers = {key: number for one in set(which.values()) for key, number in numbers_of(one).items()}
    lr = {name: draw(st.sampled_from([0.5, 0.5, 0.125])) for name in names} if draw(st.booleans()) else 0.5
    dtypes = st.sampled_from(["fp32", "amp", "bf16", "fp64"])
    config = {name: draw(dtypes) for name in names} if mixed and draw(st.booleans()) else draw(dtypes)
    sparse = [name for name, shape in params if len(shape) > 1 and shape[0] and draw(st.integers(0, 3)) == 0]
    return step_program(params, which, config=config, world_size=draw(st.integers(1, ranks)), sparse=sparse,
                        early={*which.values()} <= {*EARLY, "sgd", "momentum"} and draw(st.booleans()),
                        **numbers | {"lr": lr})
