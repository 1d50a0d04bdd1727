"""Which hypotheses explain what a step has come to, and how much of it."""

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.oracle.bound import sums
from refopt.oracle.cases import Case, memory
from refopt.oracle.diagnosis import edits
from refopt.oracle.diagnosis.hypotheses import Hypothesis, base_rule, named
from refopt.oracle.diagnosis.situation import Situation, of_case
from refopt.oracle.trial import FLUSHES, Trial

SECONDS = 6.0
WRONG_MOST = 6  # tensors that are looked at
UNWRITTEN = "elements that are not written: they are as they were"
RANKS = {"rule": 0, "choice": 0, "power": 0, "number": 1}
ENOUGH = 0.99  # of what a hypothesis has to explain
PARTLY = 0.25


class Tensor(NamedTuple):
    """What a step made of one tensor, and which elements of each slot are wrong by the rule.

    Elements that no step was taken for are part of the pattern, not of what hypotheses explain, where there are others.
    """

    case: Case
    tensor: int
    got: dict[str, np.ndarray]
    wrong: dict[str, np.ndarray]
    unchanged: dict[str, np.ndarray]  # which of them are as they were


class Explanation(NamedTuple):
    """A hypothesis, and the share of the wrong elements that it explains."""

    text: str
    share: float


class Explainer:
    """What may be wrong with a subject in one dtype.

    Args:
        trial: the subject and the rule.
        failed: cases of which the outcome is wrong.
        passed: others, that an explanation has to leave right.
    """

    def __init__(self, trial: Trial, failed: Sequence[Case], passed: Sequence[Case] = ()) -> None:
        self.trial, self.row = trial, trial.row
        wrong = list(itertools.chain.from_iterable(map(self._tensors, failed)))
        right = [x for x in wrong if not any(mask.any() for mask in x.wrong.values())]
        changed = any((x.wrong[name] & ~x.unchanged[name]).any() for x in wrong for name in x.wrong)
        self.moved = changed
        if changed:
            wrong = [x._replace(wrong={name: x.wrong[name] & ~x.unchanged[name] for name in x.wrong}) for x in wrong]
        self.wrong = _spread([x for x in wrong if any(mask.any() for mask in x.wrong.values())], WRONG_MOST)
        self.right = _spread(right + list(itertools.chain.from_iterable(map(self._tensors, passed))), WRONG_MOST)
        self.until = 0.0
        fixed = trial.fixed
        self.named = [
            h for h in named(trial.row) if all(trial.subject.takes(x) or x in fixed for x in h.needs)
        ]

    def _tensors(self, case: Case) -> list[Tensor]:
        """The tensors of a case that have gradients, as the subject leaves them now."""
        try:
            got = self.trial.run(case)
        except Exception:
            return []
        tensors = []
        for i in (i for i, g in enumerate(case.grads) if g is not None):
            arrays = {name: x for name, values in got.items() if (x := values[i]) is not None}
            expected = self.trial.expected(case, i, sums.random_data)
            held = {name: x for name, x in arrays.items() if name in expected and x.size}
            wrong = {name: np.ravel(memory(expected[name].ratio(arrays[name]))) > 1 for name in held}
            before = case.tensor(i)
            same = {name: np.ravel(memory(x) == memory(before[name])) & wrong[name] for name, x in held.items()}
            tensors.append(Tensor(case, i, held, wrong, same))
        return tensors

    def explanations(self, known: Sequence[str] = (), quick: bool = False) -> list[Explanation]:
        """Those that explain nearly all; else those that explain some of it; none if nothing does.

        Those of ``known`` names are tried first, and no others if one of them explains all. Neither changes of
        the rule nor pairs are tried if it has to be ``quick``.
        """
        self.until = time.monotonic() + SECONDS
        if not self.wrong:
            return []
        self._situation(self.wrong[0]).expected()  # that of the rule itself can be evaluated
        before = [h for h in (*self.named, *edits.of_rule(self.row)) if h.name in known] if known else []
        narrow = [h for h in self.named if h.kind in ("arithmetic", "narrow")]
        both = [pair for pair in itertools.product(before, narrow) if pair[0].kind != pair[1].kind]
        for candidates in ([(h,) for h in before], both):
            if full := _full(self._tried(candidates)):
                return full
        if before:
            return _partly(self._tried((h,) for h in before))
        single = self._tried((h,) for h in self.named)
        if full := _full(single):
            return full
        if not self.moved:
            return [Explanation(UNWRITTEN, 1.0)]
        if quick:
            return _partly(single)
        self.until = time.monotonic() + SECONDS
        changed = self._tried((h,) for h in edits.of_rule(self.row))
        if full := _full(changed):
            return full
        self.until = time.monotonic() + SECONDS / 2
        if full := _full(self._tried(self._pairs())):
            return full
        return _partly(single + changed)

    def _pairs(self) -> Iterable[tuple[Hypothesis, Hypothesis]]:
        """Pairs of hypotheses each of which matters where something is wrong."""
        kept = [h for h in self.named if h.paired and self._keeps(h)]
        kept.sort(key=lambda h: RANKS.get(h.kind, 2))
        pairs = list(itertools.combinations(kept, 2))
        pairs.sort(key=lambda pair: sum(RANKS.get(h.kind, 2) for h in pair))
        for one, two in pairs:
            if (one.kind, one.about) != (two.kind, two.about) or one.kind == "rule":
                yield one, two

    def _keeps(self, hypothesis: Hypothesis) -> bool:
        """Whether slots that are right where something is wrong are so with a hypothesis as well."""
        tensor = self.wrong[0]
        right = [name for name, mask in tensor.wrong.items() if not mask.any() and not tensor.unchanged[name].any()]
        inside = self._inside(tensor, (hypothesis,)) if right else {}
        if inside is None:
            return True
        return all(name not in inside or inside[name][0].mean() >= ENOUGH for name in right)

    def _tried(self, candidates: Iterable[tuple[Hypothesis, ...]]) -> list[Explanation]:
        found = []
        for hypotheses in candidates:
            if time.monotonic() > self.until:
                break
            share = self._share(hypotheses)
            if share >= PARTLY:
                found.append(Explanation(" and ".join(h.name for h in hypotheses), share))
        return found

    def _share(self, hypotheses: tuple[Hypothesis, ...]) -> float:
        """The share of the wrong elements that are as the hypotheses have it, less that of tensors they spoil."""
        explained = total = bounded = spoilt = 0
        for tensor in self.wrong:
            inside = self._inside(tensor, hypotheses)
            if inside is None:
                continue
            spoils = False
            for name, (within, known) in inside.items():
                mask = tensor.wrong[name]
                explained += int((within & mask & known).sum())
                bounded += int((mask & known).sum())
                total += int(mask.sum())
                right = known & ~mask & ~tensor.unchanged[name]
                spoils = spoils or bool((right & ~within).sum() > (1 - ENOUGH) * mask.size)
            spoilt += spoils
            if spoils and tensor is self.wrong[0]:
                return 0.0
            if total and explained < PARTLY * total:
                return 0.0
        if not explained:
            return 0.0
        for tensor in self.right:
            inside = self._inside(tensor, hypotheses)
            if inside is not None and any((known & ~x).sum() > (1 - ENOUGH) * x.size for x, known in inside.values()):
                spoilt += 1
        return explained / bounded * (1 - spoilt / (len(self.wrong) + len(self.right)))

    def _situation(self, tensor: Tensor) -> Situation:
        """A tensor as the rule has it."""
        flushes = bool(self.trial.fixed.get(FLUSHES))
        return of_case(tensor.case, tensor.tensor, base_rule(self.row), self.trial.real, flushes)

    def _inside(self, tensor: Tensor, hypotheses: tuple[Hypothesis, ...]) -> dict[str, Any] | None:
        """Which elements are within the bound of a hypothesis, and which have one; ``None`` if it says nothing."""
        changed: Any = self._situation(tensor)
        for hypothesis in hypotheses:
            after = hypothesis.change(changed)
            changed = changed if after is None else after
        try:
            with np.errstate(all="ignore"):
                expected = changed.expected()
        except Exception:  # what a change has made of a rule need not be one
            return None
        if expected is None:
            return None
        inside = {}
        for name, x in tensor.got.items():
            if name in expected:
                ratio, held = np.ravel(memory(expected[name].ratio(x))), np.ravel(memory(x)).astype(np.float64)
                lost = np.isnan(ratio) & ~np.isfinite(held)  # as a division by 0 has it
                inside[name] = (ratio <= 1) | lost, ~np.isnan(ratio) | lost
        return inside


def _spread(tensors: list[Tensor], most: int) -> list[Tensor]:
    """Some of a list, from its beginning to its end."""
    if len(tensors) <= most:
        return tensors
    return [tensors[round(k * (len(tensors) - 1) / (most - 1))] for k in range(most)]


def _partly(explanations: list[Explanation]) -> list[Explanation]:
    """Those that explain most of it."""
    return [x for x in sorted(explanations, key=lambda x: -x.share) if x.share >= PARTLY][:3]


def _full(explanations: list[Explanation]) -> list[Explanation]:
    """Those that explain all, each once."""
    best = sorted((x for x in explanations if x.share >= ENOUGH), key=lambda x: -x.share)
    return list({x.text: x for x in best[::-1]}.values())[::-1]
