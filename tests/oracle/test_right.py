"""Right steps pass, whatever order of operations they have."""

import collections
import itertools

import numpy as np
import pytest

from oracle.bugs import TEXTS, step_of
from refopt import cpu, oracle
from refopt.catalog import ROUTINES
from refopt.oracle.bound import sums
from refopt.oracle.broken import Broken
from refopt.oracle.laws import LAWS, again
from refopt.oracle.laws.use import COUNTS
from refopt.oracle.subjects.function import Function
from refopt.oracle.trial import Trial

pytestmark = pytest.mark.clause("N13")


# By law: cases, calls of the step, elements that are compared, and the mean of the bound's binary logarithm. A check
# that has fewer cases or a wider bound finds less, and no step that is right or far off shows it.
DRAWN = {
    ("adamw", "float32"): {
        "L1": (31, 31, 41726, -20.08), "L2": (13, 178, 3783, -19.29), "L3": (19, 19, 413732, -19.23),
        "L4": (45, 158, 1466, -19.36), "L5": (49, 49, 3380759, -18.83), "L6": (6, 6, 564, -19.47),
        "L7": (2, 2, 274, -113.16), "L8": (14, 157, 1064, -19.3), "L9": (3, 3, 3192, -20.75),
        "L10": (2, 2, 2124, -19.45), "L14": (10, 11, 10875, -19.15), "L15": (4, 22, 2522, -19.18),
        "L16": (12, 212, 14674, -19.2), "L17": (3, 54, 0, 0), "L18": (39, 262, 0, 0), "L19": (3, 6, 0, 0),
        "L20": (2, 2, 0, 0), "L21": (8, 15, 1114652, -19.27), "L22": (10, 19, 8118, -19.76), "L23": (2, 4, 0, 0),
        "L24": (13, 50, 4361, -19.24), "L28": (4, 24, 0, 0)},
    ("lars_momentum", "float32"): {
        "L1": (30, 30, 21222, -20.34), "L2": (12, 172, 2502, -20.2), "L3": (19, 19, 275284, -16.6),
        "L4": (44, 217, 960, -20.48), "L5": (54, 54, 6775776, -9.42), "L6": (6, 6, 360, -22.16),
        "L7": (2, 2, 180, -69.25), "L8": (14, 157, 704, -20.2), "L9": (3, 3, 2112, -20.27), "L10": (2, 2, 1408, -20.13),
        "L14": (9, 10, 6314, -20.27), "L15": (4, 22, 1668, -19.91), "L16": (11, 208, 7480, -20.25),
        "L17": (3, 54, 0, 0), "L18": (51, 350, 0, 0), "L19": (3, 6, 0, 0), "L20": (2, 2, 0, 0),
        "L21": (8, 15, 743016, -16.21), "L22": (8, 13, 3600, -20.19), "L23": (2, 4, 0, 0),
        "L24": (13, 50, 2850, -21.16), "L28": (4, 24, 0, 0)},
    ("momentum", "bfloat16"): {"L1": (28, 28, 23954, -20.15), "L7": (2, 2, 180, -77.95), "L10": (6, 6, 4224, -18.42),
                               "L11": (3, 3, 3168, -20.65), "L12": (2, 2, 2112, -20.35), "L13": (4, 6, 1200, -20.18),
                               "L18": (11, 78, 0, 0)},
    ("lamb", "bfloat16"): {"L1": (28, 28, 30089, -18.28), "L7": (2, 2, 274, -110.45), "L10": (6, 6, 6372, -16.57),
                           "L11": (3, 3, 4242, -18.59), "L12": (2, 2, 2828, -16.98), "L18": (7, 39, 0, 0)}}


class Drawn:
    """What a check has drawn, by law."""

    def __init__(self, monkeypatch):
        self.law, self.calls, self.errors = "", collections.Counter(), collections.defaultdict(list)
        self.elements = collections.Counter()
        tried, compare = Trial.tried, Trial._compare

        def counted(trial, *arguments):
            self.calls[self.law] += 1
            return tried(trial, *arguments)

        def compared(trial, name, i, expected, got, *more):
            self.elements[self.law] += got.size
            self.errors[self.law].append(expected.error[(expected.error > 0) & np.isfinite(expected.error)])
            return compare(trial, name, i, expected, got, *more)

        monkeypatch.setattr(Trial, "tried", counted)
        monkeypatch.setattr(Trial, "_compare", compared)

    def progress(self, done, total, text):
        self.law = text.partition(" ")[0]

    def of(self, law, cases):
        errors = np.concatenate([np.zeros(0), *(np.ravel(x) for x in self.errors[law])])
        return cases, self.calls[law], self.elements[law], np.mean(np.log2(errors)) if errors.size else 0


@pytest.mark.parametrize(("routine", "dtype", "some"), [
    ("lars_momentum", "float32", {"L1", "L9", "L14"}), ("lamb", "bfloat16", {"L1", "L12"}),
    *(pytest.param(*of, set(), marks=[pytest.mark.slow] * (of[0] not in ("adamw", "momentum"))) for of in DRAWN)])
def test_the_reference_is_right(routine, dtype, some, monkeypatch):
    """Nothing is skipped, nothing is without a bound but what cannot have one, and cases and bounds are what they are.

    One elementwise routine that carries scalars, and the steps of one with norms; make test-long has all.
    """
    expected = {law: of for law, of in DRAWN[routine, dtype].items() if law in (some or LAWS)}
    drawn, laws = Drawn(monkeypatch), [*expected] if some or dtype != "float32" else None
    report = oracle.check(routine, getattr(cpu, f"merged_{routine}"), dtypes=[dtype], laws=laws, exact=True, secret=1,
                          progress=drawn.progress, diagnose=False, process=False)
    assert report.ok and not _left(report) and report.unbounded < report.compared / 500, str(report)
    cases = collections.Counter(item.law for item in report.items)
    assert {law: drawn.of(law, cases[law]) for law in cases} == {
        law: (*counts, pytest.approx(bound, abs=0.02)) for law, (*counts, bound) in expected.items()}
    if laws is None:
        assert 0.1 < report.largest[dtype]["params"] < 0.75
        assert list(report.laws) == [law.id for law in LAWS.values() if not law.declared]


def _left(report):
    """What was skipped, but for groups and layouts of runs, which the reference has not, or refuses."""
    return [item for item in report.of("skipped") if not item.lacks]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("routine", ROUTINES)
def test_the_reference_is_right_of_every_routine(routine, dtype):
    report = oracle.check(routine, getattr(cpu, f"merged_{routine}"), dtypes=[dtype])
    assert report.ok and not _left(report) and report.unbounded < report.compared / 500, str(report)
    assert report.compared > 5 * 10**5 and list(report.laws) == [
        law.id for law in LAWS.values() if law.id != "L18" and not law.declared]
    # NAdam's comes nearest, where beta1 is near 1.
    assert dtype != "float32" or 0.1 < report.largest[dtype]["params"] < (1 if routine == "nadam" else 0.75)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("routine", ["adamw", "lamb"])
def test_one_number_beyond_the_bound_is_found(routine, dtype):
    """In the first or the last element of any slot, on either side; the last number within is right."""
    trial = Trial(ROUTINES[routine], Function(ROUTINES[routine], getattr(cpu, f"merged_{routine}")), dtype, 0, {})
    case = trial.case([45, 7], count=3)
    got = trial.hold(case)
    every = [(i, *of) for i in range(2) for of in trial.expected(case, i, sums.random_data).items()]
    for i, name, expected in every:
        for k, end in itertools.product((0, -1), ("low", "high")):
            values, right = got[name][i].reshape(-1), got[name][i].reshape(-1)[k]
            values[k] = getattr(expected, end).reshape(-1)[k]
            trial.hold(case, got)
            values[k] = np.nextafter(values[k], values.dtype.type(-np.inf if end == "low" else np.inf))
            with pytest.raises(Broken, match=rf"{name}\[{i}\], element {k % values.size} of {values.size}: expected"):
                trial.hold(case, got)
            values[k] = right


@pytest.mark.parametrize("laws", [["L1", "L7", "L10", "L11"], pytest.param(["L1", "L3"], marks=pytest.mark.slow)],
                         ids=" ".join)
@pytest.mark.parametrize("routine", [
    pytest.param(x, marks=[pytest.mark.slow] * (x not in ("sgd", "novograd"))) for x in ROUTINES])
def test_it_is_right_in_other_precisions(routine, laws):
    report = oracle.check(routine, getattr(cpu, f"merged_{routine}"), dtypes=["float64", "float16"], laws=laws,
                          process=False)
    assert report.ok, str(report)
    assert not report.of("skipped") and 0.1 < report.largest["float64"]["params"] < 0.75


@pytest.mark.parametrize("laws", [["L1", "L4"], pytest.param(None, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("routine", [
    pytest.param(x, marks=[pytest.mark.slow] * (x in ("adamw", "lamb"))) for x in TEXTS])
def test_other_orders_are_right(routine, laws):
    """Of steps that somebody may write, by loops over tensors."""
    report = oracle.check(routine, step_of(routine, {}), dtypes=["float32", "float64"], laws=laws, process=False)
    assert report.ok, str(report)
    assert report.step_compared and 0.05 < report.largest["float32"]["params"] <= 1


def test_a_step_of_numbers_of_its_own_is_given_no_others():
    def step(params, grads, moment1, moment2, beta1_pow, beta2_pow, *, lr):
        cpu.merged_adam(params, grads, moment1, moment2, beta1_pow, beta2_pow, lr=lr)

    row = ROUTINES["adam"]
    for function, has in ((step, False), (cpu.merged_adam, True)):
        labels = {x.label for x in again.in_a_row(Trial(row, Function(row, function), "float32", 0, {}))}
        assert "3 steps of other numbers" in labels and ("3 steps of other betas" in labels) == has


def test_late_steps_are_those_whose_number_a_narrower_count_loses():
    """Of as many elements as no vector divides."""
    counts = [int(np.array(count).astype(kind)) for count, kind in zip(COUNTS, ("f2", "u2", "f4"), strict=True)]
    assert counts == [3000, 1, 2**24]
    row = ROUTINES["adam"]
    trial = Trial(row, Function(row, cpu.merged_adam), "float32", 0, {})
    (late,) = (x for x in again.in_a_row(trial) if x.label == f"step {again.LATE}")
    case = late.case()
    assert case.count % 2**8 != case.count and case.params[0].size % 2


def test_radam_is_right_after_thousands_of_steps():
    """Of which it takes its scalars in closed form."""
    options = {"dtypes": ["float32"], "laws": ["L24"], "examples": 0, "process": False}
    report = oracle.check("radam", cpu.merged_radam, **options)
    assert not report.failed_laws and report.compared > 5000
