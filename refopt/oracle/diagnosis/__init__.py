"""Diagnosis of a step that breaks laws: a pattern of wrong elements, and hypotheses that explain all failures."""

from collections.abc import Sequence

import numpy as np

from refopt.oracle.broken import Crashed
from refopt.oracle.diagnosis import conduct, pattern
from refopt.oracle.diagnosis.explain import UNWRITTEN, Explainer
from refopt.oracle.diagnosis.failure import Cause, Failure
from refopt.oracle.diagnosis.situation import base_rule
from refopt.oracle.diagnosis.weighing import ENOUGH, Explanation
from refopt.oracle.exact.cases import Case, elements_of, memory
from refopt.oracle.source import legend
from refopt.oracle.trial import Trial

MOST = 2**14  # the most elements of a case for trying explanations
LARGEST = 2**17  # the most elements of a case for a pattern
FEW, MANY = 8, 256  # elements that make a cause certain: if it explains all failures, and if some are left
ROUNDS = 2  # how many causes are searched for in turn
FIRST, LATER = 44_000, 11_000  # glances of `Work`: for the first dtype, and for the rest and later dtypes

__all__ = ["ENOUGH", "Cause", "Explanation", "Failure", "causes_of", "is_small", "pattern_of"]


def pattern_of(trial: Trial, failures: Sequence[Failure]) -> str:
    """Which elements of a law's largest failure are wrong; empty if none are, or if the step raises an error."""
    cases = [x.case for x in failures if x.is_bounded and x.size[1] <= LARGEST]
    if not cases:
        return ""
    case = max(cases, key=elements_of)
    try:
        got = trial.run(case)
    except Exception:
        return ""
    slots: dict[str, list] = {}
    for i in range(len(case)):
        before = case.tensor(i)
        for name, expected in trial.expected(case, i).items():
            now = got[name][i] if got.get(name) else None
            if now is not None:
                flat = [np.ravel(memory(x)).astype(np.float64) for x in (now, before[name])]
                wrong = np.ravel(memory(expected.ratio(now))) > 1
                slots.setdefault(name, []).append((wrong, *flat))
    return pattern.described(slots)


def causes_of(
    trial: Trial, failures: Sequence[Failure], passed: Sequence[Case], known: Sequence[str] = ()
) -> list[Cause]:
    """The causes of broken laws; errors during the search are ignored.

    Args:
        trial: the subject, in a dtype.
        failures: of all laws.
        passed: cases in which laws held, which a cause must leave right.
        known: causes of failures in another dtype, which are tried first.
    """
    failures = [x for x in failures if not isinstance(x.broken, Crashed)]
    if not failures:
        return []
    causes = conduct.before(trial, failures)
    glances = LATER if known else FIRST
    for _ in range(ROUNDS):
        left = [x for x in _left(failures, causes) if x.is_bounded]
        found = _by_hypotheses(trial, left, passed, known, glances) if left else None
        if found is None or (causes and found.share < ENOUGH):
            break
        causes.append(found)
        known, glances = [*known, found.text], LATER
    told = conduct.after(trial, _left(failures, causes))
    if told:
        causes = [x for x in causes if x.share >= ENOUGH] + told
    first = [x.text for x in causes if any(word in x.text for word in conduct.OF_GRADIENTS)]
    causes.sort(key=lambda x: (x.text not in first, failures[0].law not in x.laws, -len(x.laws)))
    if any(x.is_bounded for x in _left(failures, causes)):
        for cause in causes:
            cause.certain = cause.certain and cause.strong
    return causes


def _left(failures: Sequence[Failure], causes: Sequence[Cause]) -> list[Failure]:
    explained = {key for cause in causes if cause.share >= ENOUGH for key in cause.failures}
    return [x for x in failures if x.key not in explained]


def _by_hypotheses(
    trial: Trial, bounded: Sequence[Failure], passed: Sequence[Case], known: Sequence[str], glances: float
) -> Cause | None:
    """The cause that explains the most laws."""
    small = [x for x in bounded if is_small(x.case)] or [min(bounded, key=lambda x: x.size)]
    try:
        explanations = Explainer(trial, small, passed, glances).explanations(known)
    except Exception:
        return None
    if not explanations:
        return None
    best = explanations[0]
    full = best.share >= ENOUGH
    text = best.text
    if text == UNWRITTEN and (where := pattern_of(trial, bounded)):
        text += f" ({where})"
    others = tuple(x.text for x in explanations[1:] if not full or x.laws >= best.laws)
    text += legend(base_rule(trial.row), text, ("params", "grads", *trial.row.carried))
    keys = [key for key in dict.fromkeys(x.key for x in bounded) if key[0] in best.laws]
    certain, strong = (full and best.elements >= least for least in (MANY if best.bent else FEW, MANY))
    return Cause(text, keys, certain, best.share, others, trial.dtype, strong)


def is_small(case: Case) -> bool:
    return elements_of(case) <= MOST
