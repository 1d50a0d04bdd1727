"""The checks can fail: every mutant of LARS and of its kernels is found out, and what is right passes."""

import importlib
import pkgutil

import numpy as np
import pytest

import refopt.gpu
from refopt import cpu, simt
from refopt.catalog import LARS_MOMENTUM
from refopt.conformance import check, lars, laws, mutants
from refopt.conformance.lars import STEP, make
from refopt.conformance.placed import PlacedCase, kernels, merged_step
from refopt.simt import cuda


def test_the_right_implementations_pass():
    check("lars_momentum", cpu.merged_lars_momentum)
    check("lars_momentum", mutants.Lars())


@pytest.mark.parametrize("form", LARS_MOMENTUM.forms)
def test_the_kernels_pass(machine, form):
    check("lars_momentum", merged_step(LARS_MOMENTUM, form, machine))


@pytest.mark.parametrize("mutant", mutants.MUTANTS)
def test_mutant_is_killed(mutant):
    with pytest.raises(AssertionError, match=r"case .*(N4|N11)"):
        check("lars_momentum", mutant())


def test_there_are_many():
    assert len(mutants.MUTANTS) >= 30


# Mutants of the kernels: a name of refopt.gpu is given another meaning, wherever it is used.


MODULES = [
    importlib.import_module(info.name)
    for info in pkgutil.walk_packages(refopt.gpu.__path__, "refopt.gpu.")
    if not info.name.endswith("driver")
]


@pytest.fixture
def mutate(monkeypatch):
    """Replace a function in every module that uses it by what ``change`` makes of it."""

    def forget():
        for module in MODULES:
            for value in vars(module).values():
                if hasattr(value, "cache_clear") and value.__module__ not in NOT_KERNELS:
                    value.cache_clear()

    def mutate(name, change):
        users = [module for module in MODULES if name in vars(module)]
        assert users, f"refopt.gpu has no {name} any more"
        changed = change(vars(users[0])[name])
        forget()
        for module in users:
            monkeypatch.setattr(module, name, changed)

    yield mutate
    monkeypatch.undo()
    forget()


NOT_KERNELS = {"refopt.gpu.runtime"}  # its caches hold the machines


def bits(machine):
    """Two steps over tiles, tails and several chunks, in fp32 and with bf16 parameters."""
    numbers = dict(lr=[0.3, 0.5, 0.7, 0.2], lars_weight_decay=[0.1, 0.0, 0.3, 0.2])
    cases = [lars.one_lane_each()]
    for dtypes in (("float32",) * 3, ("bfloat16", "float16", "float32", "float32")):
        cases.append(make([1025, 9001, 3, 256], dtypes, steps=[STEP | numbers, STEP | numbers]))
    for case in cases:
        for form in LARS_MOMENTUM.forms:
            laws.same_bits_as_reference(kernels(form, machine), case)


def watched(machine):
    """The same on the watching executor."""
    for form in ("cooperative", "two_launches"):
        placed = PlacedCase(machine, make([9001, 3]))
        with simt.observe(watch=True):
            placed.plan(form)(**STEP)


def contracted_rule(p, g, v, rate, mu, wd):
    v = np.float32(float(mu) * float(v) + float(rate * (g + wd * p)))
    return p - v, v


def contracted_squares(sums, x):
    return tuple(np.float32(float(s) + float(y) * float(y)) for s, y in zip(sums, x, strict=True))


def far_neighbours_first(s):
    x = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
    for distance in (16, 8, 4, 2, 1):
        x = x + cuda.shfl_xor_sync(0xFFFFFFFF, x, distance)
    return x


def truncated(value):
    return np.uint16(int(np.float32(value).view(np.uint32)) >> 16)


def shared_number(hyper, where, name, tensor):
    return hyper[where[name, 0]]


def without_last_chunk(build):
    def shorter(*args, **kwargs):
        tables = build(*args, **kwargs)
        return tables._replace(chunks=tables.chunks[:-1])

    return shorter


def always_whole(access):
    return lambda dtype, real, partial, *policy: access(dtype, real, False, *policy)


KERNEL_MUTANTS = {
    "the rule contracted": ("rule", lambda _: contracted_rule),
    "the squares contracted": ("add_squares", lambda _: contracted_squares),
    "lanes joined far neighbours first": ("lane_tree", lambda _: far_neighbours_first),
    "incomplete rows left out": ("rows_of", lambda _: lambda first, stop: min((stop - first) // 256, 4)),
    "bf16 truncated, not rounded": ("_round_brain", lambda _: truncated),
    "numbers of the first tensor for all": ("hyper_of", lambda _: shared_number),
    "norm carried over before it is rounded": ("rounded8", lambda _: lambda dtype: lambda x: x),
    "the last chunk dropped": ("build", without_last_chunk),
    "whole rows at the end of a tensor": ("access", always_whole),
}


@pytest.mark.parametrize("name", KERNEL_MUTANTS)
def test_kernel_mutant_is_killed(executor, mutate, name):
    bits(executor)
    mutate(*KERNEL_MUTANTS[name])
    with pytest.raises((AssertionError, simt.SimtError)):
        bits(executor)


def test_missing_fence_is_seen(executor, mutate):
    """Tile sums handed from block to block without a fence: no bit shows it here, the watching executor does."""
    watched(executor)
    mutate("fence", lambda _: lambda: None)
    bits(executor)
    with pytest.raises(simt.DataRace):
        watched(executor)


def test_missing_block_barrier_is_seen(executor, monkeypatch):
    """Tile sums joined before the other warps have left theirs."""
    monkeypatch.setattr(cuda, "syncthreads", lambda: None)
    with pytest.raises(simt.SimtError):
        watched(executor)


def test_missing_grid_barrier_is_seen(executor, monkeypatch):
    """A cooperative kernel that updates before all norms are there."""
    grid = type("Grid", (), {"sync": lambda self: None})
    monkeypatch.setattr(cuda.cg, "this_grid", grid)
    with pytest.raises(simt.SimtError):
        watched(executor)
