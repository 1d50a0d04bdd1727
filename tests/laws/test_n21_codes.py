"""N21: states in 8 bits: what codes stand for, what a step leaves of them, and what a group cannot do to others."""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from laws.marks import each, few, of, pairs
from laws.routines import ELEMENTWISE, optional_states
from refopt import cpu, simt, state
from refopt.checks.dtypes import CODED, GROUP, bytes_of, coded_bytes
from refopt.cpu.codes import ROOTS, SIGNED, chance, chances, codes_of
from refopt.cpu.stochastic import random16
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import assert_same, memory
from refopt.oracle.exact.laws import reference, same_bits_as_reference
from refopt.oracle.exact.placed import PlacedCase, kernels
from refopt.oracle.exact.strategies import cases, sizes

pytestmark = pytest.mark.clause("N21")
WITH_STATES = tuple(routine for routine in ELEMENTWISE if routine.states)
KINDS = st.sampled_from([SIGNED, ROOTS])
ALL_CHANCES = chance(np.arange(0, 2**16, 4))
CHANCES = st.sampled_from([0.5, *ALL_CHANCES[[0, -1]]])
FLAT = st.sampled_from([("float32", "float32", "float32", None), ("float32", "float16", "float32", None),
                        ("float16", "float16", "float32", "float32")])


def stored(kind, x, u=None):
    """The bytes of a state."""
    coded = np.zeros(coded_bytes(x.size), np.uint8)
    with np.errstate(all="ignore"):
        kind.encode(coded, x) if u is None else kind.encode(coded, x, u)
    return coded


def groups_of(coded):
    """Codes and scales of groups."""
    groups = coded.reshape(-1, CODED)
    return groups[:, :GROUP], groups[:, GROUP:].copy().view(np.float32)[:, 0]


def kinds(routine):
    """The codes of each state of a routine."""
    return {slot.name: codes_of(slot) for slot in routine.slots if slot.name in routine.states}


def in_8_bits(case):
    """A case whose states are coded."""
    lists = {name: case.slots[name] for name in kinds(case.routine) if case.slots[name]}
    return case.replace(**{name: [x if x is None else stored(kinds(case.routine)[name], memory(x)) for x in xs]
                           for name, xs in lists.items()})


def values(kind, count=GROUP):
    """Finite values of all sizes that a state of a kind may have: the squares of a group span 48 powers of 2."""
    each = st.tuples(st.floats(0.5, 1, width=32), st.integers(-30, 0), st.booleans())
    top = st.integers(-20, 20)

    def made(drawn):
        most, parts = drawn
        x = np.array([f * 2.0 ** (e + most) * (-1 if s and kind.signed else 1) for f, e, s in parts])
        return (x if kind.signed else x * x).astype(np.float32)

    return st.tuples(top, st.lists(each, min_size=count, max_size=count)).map(made)


@pytest.mark.clause("N4")
@of([pytest.param(*row, marks=[pytest.mark.slow] * (row[1] == "separate")) for row in pairs(WITH_STATES)])
@few(4, data=st.data(), rounding=st.sampled_from(["nearest", "stochastic"]))
def test_kernels_store_the_codes_of_the_reference(machine, routine, form, data, rounding):
    """For lists of any lengths, in several steps, with inf, NaN and masters."""
    case = in_8_bits(data.draw(cases(routine, 1, 3, FLAT, rounding=rounding)))
    same_bits_as_reference(kernels(form, machine), case)


@each(*WITH_STATES)
@few(4, lengths=st.lists(sizes(()), min_size=1, max_size=3), seed=st.integers(0, 99))
@example([31, 32, 33], 0)
def test_a_step_uses_the_decoded_values(routine, lengths, seed):
    """The rule takes the decoded values, and gives the same parameter as with an fp32 state."""
    case = make(routine, lengths, seed=seed, optional=optional_states(routine))
    coded = in_8_bits(case)
    states = {name: kind for name, kind in kinds(routine).items() if coded.slots[name]}
    slots = {name: [kind.decode(x, n) for x, n in zip(coded.slots[name], lengths, strict=True)]
             for name, kind in states.items()}
    plain, got = reference(case.replace(**slots)), reference(coded)
    plain |= {name: [stored(kind, x) for x in plain[name]] for name, kind in states.items()}
    assert_same(plain, got, "N21, a step")


@few(kind=KINDS, exponent=st.integers(-45, 37), fraction=st.integers(0, 2**19 - 1), u=CHANCES)
def test_loading_and_storing_keeps_codes(kind, exponent, fraction, u):
    """Every signed and unsigned code and its scale, whatever the random bits."""
    most = len(kind.parts) - 1
    q = np.arange(-most if kind.signed else 0, most + 1)
    codes = np.insert(q, np.arange(0, len(q), GROUP - 1), most)  # a largest one in each group
    coded = np.zeros((-(-len(codes) // GROUP), CODED), np.uint8)
    coded[:, :GROUP] = np.pad(codes, (0, -len(codes) % GROUP)).reshape(-1, GROUP).astype(np.uint8)
    coded[:, GROUP:] = np.float32(2.0**exponent * (1 + fraction / 2**19)).reshape(1, 1).view(np.uint8)
    coded = coded.reshape(-1)
    x = kind.decode(coded, len(codes))
    assert stored(kind, x, np.float32(u)).tobytes() == coded.tobytes()


@few(kind=KINDS, data=st.data())
def test_an_element_goes_to_the_nearer_of_two_codes(kind, data):
    """Zeros stay zero, positive squares stay positive, signs stay, and the largest element keeps 19 bits."""
    x = data.draw(values(kind))
    coded = stored(kind, x)
    (codes, (scale,)), y = groups_of(coded), kind.decode(coded, GROUP)
    q, exact = codes[0].view(np.int8 if kind.signed else np.uint8).astype(float), x.astype(float)
    every = float(scale) * kind.parts.astype(float)
    every = np.sign(exact)[:, None] * every if kind.signed else every
    distances = abs(every - exact[:, None])
    allowed = distances[np.arange(GROUP), abs(q).astype(int)] <= distances.min(1) * (1 + 1e-4) + 1e-6 * every.max()
    raised = (q == 1) & ~np.array(kind.signed)  # instead of to zero
    assert (allowed | raised).all()
    assert ((x == 0) == (y == 0)).all() or kind.signed
    assert (np.sign(y) * np.sign(x) >= 0).all()
    k = abs(x).argmax()
    assert abs(y[k] - x[k]) <= 2.0**-18 * abs(x[k])


@few(4, kind=KINDS, data=st.data())
def test_by_chance_an_element_is_right_on_average(kind, data):
    """It rounds up for a share of the 2^14 chances that equals its distance from the code below."""
    x = data.draw(values(kind))
    largest = abs(x).argmax()
    every = np.array([kind.decode(stored(kind, x, u), GROUP) for u in ALL_CHANCES[:: 2**7]], float)
    step = every.max(0) - every.min(0)
    assert (abs(every.mean(0) - x)[step > 0] <= step[step > 0] / 100).all() or not kind.signed
    assert (every[:, largest] == every[0, largest]).all()


@few(kind=KINDS, data=st.data(), bad=st.sampled_from([np.nan, np.inf]), at=st.integers(0, 3 * GROUP - 1))
def test_a_bad_element_spoils_only_its_group(kind, data, bad, at):
    """Its whole group, visibly; groups are independent, so they may be permuted, split and joined."""
    x = np.concatenate([data.draw(values(kind)) for _ in range(3)])
    before = stored(kind, x).reshape(3, CODED)
    assert before.tobytes() == b"".join(stored(kind, part).tobytes() for part in x.reshape(3, GROUP))
    x[at] = bad
    after = stored(kind, x)
    there = np.arange(3) != at // GROUP
    assert (after.reshape(3, CODED) == before)[there].all()
    assert (np.isnan(kind.decode(after, x.size).reshape(3, GROUP)).all(1) == ~there).all()


@few(kind=KINDS, data=st.data(), power=st.integers(-12, 12), size=st.integers(1, GROUP))
def test_codes_depend_only_on_ratios(kind, data, power, size):
    """Multiplying by a power of 2 keeps codes, in a group of any length padded with zeros."""
    x = data.draw(values(kind))[:size]
    assume(abs(x).max() * min(1, 4.0**power) >= kind.least)
    scaled = x * np.float32(4.0**power)
    (codes, scales), (others, bigger) = groups_of(stored(kind, x)), groups_of(stored(kind, scaled))
    assert (codes == others).all() and (codes[0, size:] == 0).all()
    assert scales[0] * 4.0**power == bigger[0]


@few(kind=KINDS, exponent=st.integers(-149, -30), negative=st.booleans())
@example(SIGNED, -47, True)
@example(SIGNED, -46, False)
@example(ROOTS, -100, False)
def test_a_tiny_group_becomes_zero(kind, exponent, negative):
    """Below 2^-46, or 2^-100 without a sign; zeros of both signs give the same code."""
    x = np.full(5, 2.0**exponent, np.float32) * np.float32(-1 if negative and kind.signed else 1)
    assert (kind.decode(stored(kind, x), 5) == 0).all() == (exponent < (-46 if kind.signed else -100))
    assert not stored(kind, x * 0).any()


@few(4, until=st.integers(3, 60), power=st.integers(-16, 0), seed=st.integers(0, 99),
     rounding=st.sampled_from(["nearest", "stochastic"]))
@example(50, -8, 0, "nearest")
def test_adam_stays_within_its_law_when_a_gradient_vanishes(until, power, seed, rounding):
    """By Cauchy-Schwarz, the first moment is at most 7.27 times the second's root; codes add only their rounding."""
    rng = np.random.default_rng(seed)
    p, moments = np.zeros(64, np.float32), [np.zeros(coded_bytes(64), np.uint8) for _ in range(2)]
    powers = [np.full(1, beta, np.float32) for beta in (0.9, 0.999)]
    scale = np.where(np.arange(64) % 2, 1.0, 2.0**power).astype(np.float32)
    for step in range(120):
        g = rng.standard_normal(64).astype(np.float32) * scale
        g[::2] *= step < until
        cpu.adamw(p, g, *moments, *powers, lr=1e-3, coeff=0.0, epsilon=0.0, rounding=rounding, seed=step)
        m, v = SIGNED.decode(moments[0], 64), ROOTS.decode(moments[1], 64)
        assert (abs(m) <= 7.27 * 2 * np.sqrt(v)).all()
    assert abs(p).max() < 120 * 1e-3 * 7.27


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_small_gradient_beside_large_ones_moves_its_parameter(rounding):
    """If it is a thousandth of them: as far as in fp32, within a fifth; evenly spaced codes would damp it."""
    size, moved = 320, []
    small = np.arange(size) % 10 == 0
    for coded in (False, True):
        p, powers = np.zeros(size, np.float32), [np.full(1, beta, np.float32) for beta in (0.9, 0.999)]
        states = [np.zeros(coded_bytes(size), np.uint8) if coded else np.zeros(size, np.float32) for _ in range(2)]
        rng = np.random.default_rng(3)
        for step in range(100):
            g = (1 + rng.standard_normal(size)).astype(np.float32) * np.where(small, np.float32(1e-3), np.float32(1))
            cpu.adamw(p, g, *states, *powers, lr=1e-3, coeff=0.0, rounding=rounding, seed=step)
        moved.append(p[small])
    assert abs(moved[1] / moved[0] - 1).mean() < 0.2


def test_zeros_of_a_gradient_let_averages_decay_by_chance():
    """Rounding to nearest would stop the decay, since averages change by less than half the distance of codes."""
    size = 32 * 40
    powers = [np.full(1, beta, np.float32) for beta in (0.9, 0.999)]
    v = ROOTS.coded(np.tile(np.r_[1.0, np.full(31, 0.25)], 40).astype(np.float32))
    m, p = np.zeros(coded_bytes(size), np.uint8), np.zeros(size, np.float32)
    g = np.tile(np.r_[1.0, np.zeros(31)], 40).astype(np.float32)
    for step in range(300):
        cpu.adamw(p, g, m, v, *powers, lr=0.0, rounding="stochastic", seed=step)
    small = ROOTS.decode(v, size)[np.arange(size) % 32 > 0]
    assert abs(small.mean() / (0.25 * 0.999**300) - 1) < 0.03


@few(kind=KINDS, seed=st.integers(0, 99), exponent=st.integers(-45, 126))
def test_scales_have_20_bits(kind, seed, exponent):
    """Rounded up, unless at most 3/16 of a unit above; with an infinity or NaN, a single NaN, whatever the codes."""
    largest = np.random.default_rng(seed).uniform(1, 2, 4096).astype(np.float32) * np.float32(2.0**exponent)
    scales, exact = kind.scales(largest).astype(float), (largest * kind.above).astype(float)
    unit = 2.0 ** (np.frexp(exact)[1] - 20)
    assert (scales == np.ceil(exact / unit - 3 / 16) * unit).all()
    bad = np.array([np.inf, np.nan], np.float32)
    assert (kind.scales(bad).view(np.uint32) == 0x7FC00000).all()


@each(*WITH_STATES)
@few(4, size=st.integers(1, 300), byte=st.integers(1, 255))
def test_codes_beyond_a_tensor_become_zero(machine, routine, size, byte):
    """Every backend writes them, and none reads them."""
    case = in_8_bits(make(routine, [size]))
    for name in kinds(routine):
        if case.slots[name]:
            case.slots[name][0].reshape(-1, CODED)[-1, (size - 1) % GROUP + 1 : GROUP] = byte
    left = reference(case)
    assert_same(left, kernels("merged", machine)(case), "N4, padding")
    assert_same(left, reference(in_8_bits(make(routine, [size]))), "N21, padding")


@pytest.mark.parametrize("size", [1, 33, 300])
def test_no_thread_reads_a_scale_that_another_stores(machine, size):
    """The executor watches steps on whole and partial rows."""
    if machine.name == "gpu":
        pytest.skip("accesses are watched on the executor")
    routine = next(r for r in WITH_STATES if r.name == "adam")
    with simt.observe(watch=True):
        kernels("merged", machine)(in_8_bits(make(routine, [size], rounding="stochastic")))


@each(*WITH_STATES)
def test_a_run_resumes_from_a_dictionary(machine, routine):
    """Bytes are saved and loaded unchanged; PyTorch's layout cannot hold them."""
    case = in_8_bits(make(routine, [33, 5], rounding="stochastic"))
    first, other = (PlacedCase(machine, x.copy()) for x in (case, case))
    step, again = (placed.plan("merged", **case.steps[0]) for placed in (first, other))
    step()
    saved = step.state_dict()
    again.load_state_dict(saved)
    for x, y in zip(other.placed["params"], first.placed["params"], strict=True):
        x._memory.copy_to_device(y._memory)
    for plan in (step, again):
        plan.step(seed=9)
    assert_same(first.outcome(), other.outcome(), "N21, resumed")
    if routine.name == "adam":
        with pytest.raises(TypeError, match=r"moment1\[0\]: expected floats, .* got a state in 8 bits"):
            state.to_torch(saved | {"hypers": saved["hypers"] | {"lr": 0.1}})


@each(*WITH_STATES)
def test_bytes_of_a_step_are_those_of_groups(routine):
    """Each is read and written once."""
    case, coded = make(routine, [1, 33, 0]), in_8_bits(make(routine, [1, 33, 0]))
    saved = routine.bytes(case.specs(), "merged") - routine.bytes(coded.specs(), "merged")
    required = [slot for slot in routine.slots if slot.name in routine.states and not slot.optional]
    assert saved == 2 * len(required) * (4 * 34 - 3 * CODED) and bytes_of("uint8", 33) == 2 * CODED


@pytest.mark.parametrize(("routine", "change", "message"), [
    ("adamw", lambda x: x[:-1], r"moment1: expected shape \(72,\) for 33 elements in 8 bits, got \(71,\)"),
    ("adamw", lambda x: np.zeros(80, np.uint8)[1:73], r"moment1: expected an address divisible by 4"),
    ("adamw", lambda x: np.zeros(144, np.uint8)[::2], r"moment1: expected a dense array"),
    ("adamw", lambda x: np.frombuffer(bytes(72), np.uint8), r"moment1: expected a writable array"),
    ("adamw", lambda x: np.zeros(72, np.int8), r"moment1: expected float32 or bfloat16 or uint8, got int8"),
    ("lamb", lambda x: x, r"moment1: expected float32 or bfloat16, got uint8")])
def test_invalid_8_bit_states_are_refused(routine, change, message):
    """The error names it, and nothing is modified."""
    p, g = np.ones(33, np.float32), np.ones(33, np.float32)
    states = [change(np.zeros(72, np.uint8)), np.zeros(33, np.float32)]
    powers = [np.full(1, beta, np.float32) for beta in (0.9, 0.999)]
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(cpu, routine)(p, g, *states, *powers, lr=0.1)
    assert (p == 1).all()


def test_fp64_has_no_states_in_8_bits():
    """They would lose a step's precision."""
    with pytest.raises(TypeError, match=r"velocity: expected float64, got uint8"):
        cpu.momentum(np.ones(3), np.ones(3), np.zeros(36, np.uint8), lr=0.1, mu=0.9)


@given(seed=st.integers(0, 2**24 - 1), array=st.integers(0, 3), size=st.integers(0, 70))
def test_chances_come_from_philox(seed, array, size):
    """They use the bits that would round a bf16 number (N16), and are never 0 or 1."""
    u = chances(size, seed, array)
    assert u.dtype == np.float32 and u.shape == (size,) and ((u > 0) & (u < 1)).all()
    assert (np.floor(u * 2**14) == random16(size, seed, array) >> 2).all()


def test_steps_of_one_seed_round_alike(machine):
    """Steps of other seeds round differently."""
    routine = next(r for r in WITH_STATES if r.name == "momentum")
    case = in_8_bits(make(routine, [200], steps=[step_of(routine, seed=1)], rounding="stochastic"))
    other, run = case.replace(steps=[step_of(routine, seed=2)]), kernels("merged", machine)
    assert (run(case)["velocities"][0] == run(case)["velocities"][0]).all()
    assert (run(case)["velocities"][0] != run(other)["velocities"][0]).any()
