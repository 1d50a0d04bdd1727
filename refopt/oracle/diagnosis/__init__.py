"""What is wrong with a step that breaks a law: where, as a pattern, and why, by hypotheses."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.oracle.bound import sums
from refopt.oracle.broken import Broken
from refopt.oracle.cases import Case, memory
from refopt.oracle.diagnosis import pattern
from refopt.oracle.diagnosis.explain import ENOUGH, Explainer, Explanation
from refopt.oracle.trial import Trial

STEP = "L1"
MOST = 2**14  # elements of a case that explanations are tried on

__all__ = ["ENOUGH", "Explanation", "Found", "of_failures", "pattern_of"]


def pattern_of(trial: Trial, case: Case) -> str:
    """Which elements of a case are wrong; nothing if none are, or if the step fails by itself."""
    try:
        got = trial.run(case)
    except Exception:
        return ""
    slots: dict[str, list] = {}
    for i in range(len(case)):
        before = case.tensor(i)
        for name, expected in trial.expected(case, i, sums.random_data).items():
            now = got[name][i] if got.get(name) else None
            if now is not None:
                flat = [np.ravel(memory(x)).astype(np.float64) for x in (now, before[name])]
                wrong = np.ravel(memory(expected.ratio(now))) > 1
                slots.setdefault(name, []).append((wrong, *flat))
    return pattern.described(slots)


class Found(NamedTuple):
    """Where and why a law is broken."""

    pattern: str = ""
    reasons: tuple[tuple[str, float], ...] | None = None


def of_failures(
    trial: Trial, law: str, failed: Sequence[tuple[Case, Broken]], passed: Sequence[Case], explained: Sequence[Any]
) -> Found:
    """What is wrong where a law is broken.

    Args:
        trial: the subject, in a dtype.
        law: its id. Other laws than the step law are explained where that holds.
        failed: the cases, and how each broke it.
        passed: cases of which the law held.
        explained: items of failures that were looked into already. Their explanations are tried first. Where there was
            none, no more than single hypotheses are tried again.
    """
    bounded = [one for one in failed if _is_bounded(*one)]
    if not bounded:
        return Found()
    worst = max((case for case, _ in bounded), key=_elements)
    where = pattern_of(trial, worst)
    if law != STEP and any(item.law == STEP and item.dtype == trial.dtype for item in explained):
        return Found(where)
    known = dict.fromkeys(name for item in explained for name, share in item.reasons if share >= ENOUGH)
    quick = not all(item.reasons for item in explained)
    explainer = Explainer(trial, _places(bounded), list(filter(_is_small, passed)))
    return Found(where, tuple((x.text, round(x.share, 4)) for x in explainer.explanations(list(known), quick)))


def _is_bounded(case: Case, broken: Broken) -> bool:
    """Whether one step was over its bound, at a place that is known."""
    return broken.where is not None and broken.ratio is not None and len(case.steps) == 1


def _places(failed: Sequence[tuple[Case, Broken]]) -> list[tuple[Case, int]]:
    """Small cases, or the smallest one, each with the tensor that is wrong."""
    small = [one for one in failed if _is_small(one[0])] or [min(failed, key=lambda one: _elements(one[0]))]
    return [(case, broken.where.tensor) for case, broken in small if broken.where is not None]


def _is_small(case: Case) -> bool:
    return _elements(case) <= MOST


def _elements(case: Case) -> int:
    return sum(x.size for x in case.params)
