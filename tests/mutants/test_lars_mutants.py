"""The checks can fail: every mutant of LARS and of its kernels is found out, and what is right passes."""

import importlib
import pkgutil
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

import refopt.gpu
from mutants.lars import MUTANTS, Lars
from refopt import cpu, simt
from refopt.catalog import LARS_MOMENTUM
from refopt.gpu import runtime, vectors
from refopt.gpu.rules import RULES
from refopt.gpu.tables import SLOT
from refopt.oracle.exact import check, lars, laws
from refopt.oracle.exact.build import remainders
from refopt.oracle.exact.cases import runner
from refopt.oracle.exact.lars import STEP, gate, make
from refopt.oracle.exact.placed import PlacedCase, kernels, merged_step
from refopt.simt import cuda, memory

pytestmark = pytest.mark.slow  # tests of tests


def check_gated(run):
    """The cases of `check`, and those of steps that are given a factor and a flag."""
    laws.check_run("lars_momentum", run)
    for name, case in lars.gated():
        try:
            laws.same_bits_as_reference(run, case)
        except AssertionError as error:
            raise AssertionError(f"case {name!r}: {error}") from None


IN_N4 = LARS_MOMENTUM.merged_form, "separate"  # whose kernels tests/laws/test_n04_equal_bits.py holds to the same cases


def test_the_right_implementations_pass():
    check("lars_momentum", cpu.merged_lars_momentum)
    check_gated(Lars())


@pytest.mark.parametrize("form", [form for form in LARS_MOMENTUM.forms if form not in IN_N4])
def test_the_kernels_pass(machine, form):
    run = runner(merged_step(LARS_MOMENTUM, form, machine))
    # On the executor a case gives the same each time; laws that run it again need not.
    laws.check_run("lars_momentum", cache(run) if machine.name == "executor" else run)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name):
    with pytest.raises(AssertionError, match=r"case .*(N4|N11)"):
        check_gated(MUTANTS[name])


def test_there_are_many():
    assert len(MUTANTS) >= 35


# Mutants of the kernels: a name of refopt.gpu is given another meaning, wherever it is used.


APART = "driver", "parts", "exactness"  # which have names of their own, of other things
MODULES = [
    importlib.import_module(info.name)
    for info in pkgutil.walk_packages(refopt.gpu.__path__, "refopt.gpu.")
    if not info.name.endswith(APART)
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
    """Two steps over tiles, tails and several chunks, in fp32 and with bf16 parameters; tiles with remainders."""
    numbers = dict(lr=[0.3, 0.5, 0.7, 0.2], lars_weight_decay=[0.1, 0.0, 0.3, 0.2])
    cases = [lars.one_lane_each()]
    for dtypes in (("float32",) * 3, ("bfloat16", "float16", "float32", "float32")):
        cases.append(make([1025, 9001, 3, 256], dtypes, steps=[STEP | numbers, STEP | numbers]))
    for norm_of in LARS_MOMENTUM.choices["norm_of"]:
        cases.append(lars.ties(remainders()[0], norm_of))
    cases.append(make([1025, 256], remainders()[1], steps=[STEP, STEP], norm_of="master"))
    for case in cases:
        for form in LARS_MOMENTUM.forms:
            laws.same_bits_as_reference(kernels(form, machine), case)


def gated_bits(machine):
    """Steps that are taken and steps that are skipped, with a skipped one first and without."""
    gates = [gate(0.3), gate(7.0, 1), gate(0.7), gate(3.0, np.nan), gate(0.2)]
    for first in (0, 1):
        case = make([2050, 3], steps=[STEP | given for given in gates[first:]])
        for form in LARS_MOMENTUM.forms:
            laws.same_bits_as_reference(kernels(form, machine), case)


def watched(machine):
    """The same on the watching executor."""
    for form in ("cooperative", "two_launches"):
        placed = PlacedCase(machine, make([9001, 3]))
        with simt.observe(count=False, watch=True):
            placed.plan(form)(**STEP)


def contracted_rule(p, g, v, k):
    _, mu, _, decay, _, _, rate = k
    v = np.float32(float(mu) * float(v) + float(rate * (g + decay * p)))
    return p - v, v


def contracted_squares(sums, x):
    return tuple(np.float32(np.float64(s) + np.float64(y) * np.float64(y)) for s, y in zip(sums, x, strict=True))


def far_neighbours_first(s):
    x = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
    for distance in (16, 8, 4, 2, 1):
        x = x + cuda.shfl_xor_sync(0xFFFFFFFF, x, distance)
    return x


def truncated(address, values):
    memory.store(address, np.uint16, [np.uint16(int(np.float32(x).view(np.uint32)) >> 16) for x in values])


def first_numbers(block):
    class First(block):
        def set(self, name, value, stream):
            super().set(name, value[0] if isinstance(value, list) else value, stream)

    return First


def without_last_chunk(build):
    def shorter(*args, **kwargs):
        tables = build(*args, **kwargs)
        return tables._replace(chunks=tables.chunks[:-1])

    return shorter


def always_whole(access):
    return lambda dtype, real, partial, *policy: access(dtype, real, False, *policy)


def of_rule(**parts):
    """`RULES` with parts of the rule of LARS replaced."""
    right = RULES["lars_momentum"]
    return "RULES", lambda rules: rules | {"lars_momentum": lambda *a, **named: right(*a, **named)._replace(**parts)}


def carried_as(normed):
    """The norm carried over as if it were that of the other parameters."""
    return "stored8", lambda make: lambda dtypes, _: make(dtypes, normed)


def nearest_even(x):
    return tuple(vectors.round_bfloat16(value) for value in x)


KERNEL_MUTANTS = {
    "the rule contracted": of_rule(rule=contracted_rule),
    "the squares contracted": ("add_squares", lambda _: contracted_squares),
    "lanes joined far neighbours first": ("lane_tree", lambda _: far_neighbours_first),
    "incomplete rows left out": ("rows_of", lambda _: lambda first, stop: min((stop - first) // 256, 4)),
    "bf16 truncated, not rounded": ("store4_bfloat16", lambda _: truncated),
    "numbers of the first tensor for all": ("HyperBlock", first_numbers),
    "norm carried over before it is rounded": ("rounded8", lambda _: lambda dtype: lambda x: x),
    "the last chunk dropped": ("build", without_last_chunk),
    "whole rows at the end of a tensor": ("access", always_whole),
    "whole rows of halves at the end of a tensor": (
        "_joined_access",
        lambda access: lambda _, policy: access(False, policy),
    ),
    "the norm of the stored parameter in place of the exact one's": of_rule(reads=("stored_params", "grads")),
    "the norm of the exact parameter in place of the stored one's": of_rule(reads=("params", "grads")),
    "the stored parameter's norm carried over for the exact one's": carried_as("stored_params"),
    "the exact parameter's norm carried over for the stored one's": carried_as("params"),
    "ties to even in the norm carried over": ("round4_away", lambda _: nearest_even),
}


@pytest.fixture(scope="module")
def right(executor):
    """What is to kill the mutants passes what is right."""
    bits(executor)
    gated_bits(executor)
    watched(executor)


@pytest.mark.parametrize("name", KERNEL_MUTANTS)
def test_kernel_mutant_is_killed(executor, right, mutate, name):
    mutate(*KERNEL_MUTANTS[name])
    with pytest.raises((AssertionError, simt.SimtError)):
        bits(executor)


def of_phases(part, change):
    """Functions that make device functions replaced: `closing` makes those of the norms, `updating` of the updates."""

    def changed(phases):
        def make(*args):
            do = phases(*args)
            altered = {part: lambda *parts: change(do, getattr(do, part)(*parts))}
            own = {"closing": "norms", "updating": "update"}[part]
            return SimpleNamespace(**vars(do) | altered | {own: change(do, getattr(do, own))})

        return make

    return "phases", changed


def leaves_no_norm(do, update):
    def changed(c, offset, length, addresses, chunks, sums, numbers, hyper, factor_at, found_at):
        update(c, offset, length, addresses, chunks, sums, numbers, hyper, factor_at, found_at)
        if do.found(found_at):
            sums[0, chunks[c, SLOT]] = 0

    return changed


def one_alone(make):
    def changed(real, factor):
        found, factor_of = make(real, factor)
        return lambda at: found(at) and vectors.load_float32(at) == 1, factor_of

    return changed


GATE_MUTANTS = {
    "the factor in the norm only": of_phases("updating", lambda _, f: lambda *a: f(*a[:-2], 0, a[-1])),
    "the factor in the update only": of_phases("closing", lambda _, f: lambda *a: f(*a[:-1], 0)),
    "the flag in the first launch only": of_phases("updating", lambda _, f: lambda *a: f(*a[:-1], 0)),
    "no norm carried over from a skipped step": of_phases("updating", leaves_no_norm),
    "a flag of 1 and no other": ("gate", one_alone),
}


@pytest.mark.parametrize("name", GATE_MUTANTS)
def test_gate_mutant_is_killed(executor, right, mutate, name):
    mutate(*GATE_MUTANTS[name])
    plain = make([2050, 3], steps=[STEP, STEP])
    for form in LARS_MOMENTUM.forms:
        laws.same_bits_as_reference(kernels(form, executor), plain)
    with pytest.raises(AssertionError):
        gated_bits(executor)


class Flagged(runtime.Executor):
    """The executor with the flag given to launches that ask for none."""

    flag = 0

    def prepare(self, made, grid, block, args, *how):
        self.flag = args[-1] or self.flag
        return lambda stream: made.executor[grid, 32, stream](*args[:-1], self.flag)


def test_norm_not_taken_in_a_skipped_first_step_is_seen(monkeypatch):
    """The launch that takes the norm to be carried over gated like the others."""
    machine = Flagged()
    monkeypatch.setattr(runtime, "_executor", lambda: machine)
    with pytest.raises(AssertionError):
        gated_bits(machine)


def test_missing_fence_is_seen(executor, right, mutate):
    """Tile sums handed from block to block without a fence: no bit shows it here, the watching executor does."""
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
