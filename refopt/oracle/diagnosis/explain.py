"""Which hypotheses explain what a step has come to, and how much of it."""

import copy
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.oracle.cases import Case, memory
from refopt.oracle.diagnosis import edits, operands
from refopt.oracle.diagnosis.evidence import Tensor, spread, tensors_of
from refopt.oracle.diagnosis.hypotheses import Hypothesis, base_rule, named
from refopt.oracle.diagnosis.situation import Inputs, Situation, Unanswered, of_case
from refopt.oracle.trial import FLUSHES, Trial

SECONDS, LONGER = 2.5, 5.0  # of the processor, for a kind of hypotheses; for one of thousands
MOST = 6  # tensors that are looked at, wrong ones and right ones
UNWRITTEN = "elements that are not written: they are as they were"
RANKS = {"rule": 0, "choice": 0, "power": 0, "number": 1}
ENOUGH = 0.9995  # of what a hypothesis has to explain
SPOILT = 0.01  # of a tensor's elements that it may make wrong
PARTLY = 0.25
# What a rule raises that a change of its source has made none. Those with names raise nothing, as tests say.
NO_RULE = TypeError, ValueError, AttributeError, LookupError, ArithmeticError


class Explanation(NamedTuple):
    """A hypothesis, and the share of the wrong elements that it explains."""

    text: str
    share: float


class Explainer:
    """What may be wrong with a subject in one dtype.

    Args:
        trial: the subject and the rule.
        failed: cases of which the outcome is wrong, each with the number of a tensor that is.
        passed: others, that an explanation has to leave right.
    """

    def __init__(self, trial: Trial, failed: Sequence[tuple[Case, int]], passed: Sequence[Case] = ()) -> None:
        self.trial, self.row = trial, trial.row
        tensors = [x for case, i in spread(failed, MOST) for x in tensors_of(trial, case, i)]
        right, wrong = ([x for x in tensors if x.is_wrong == is_wrong] for is_wrong in (False, True))
        moved = [x for x in (x.without_unchanged() for x in wrong) if x.is_wrong]
        self.moved = bool(moved)
        self.wrong = spread(moved or wrong, MOST)
        self.right = spread(right + [x for case in spread(passed, MOST) for x in tensors_of(trial, case)], MOST)
        self.known: dict[tuple[int, int], tuple[Situation, Inputs | None]] = {}
        self.named = [h for h in named(trial.row) if all(_has(trial, x) for x in h.needs)]

    def explanations(self, known: Sequence[str] = (), quick: bool = False) -> list[Explanation]:
        """Those that explain nearly all; else those that explain some of it; none if nothing does.

        Those of ``known`` names are tried first, and no others if one of them explains all. Neither changes of
        the rule nor pairs are tried if it has to be ``quick``.
        """
        if not self.wrong:
            return []
        if before := self._of_names(known) if known else []:
            return self._by_known(before)
        single = self._tried((h,) for h in self.named)
        if full := _full(single):
            return full
        if not self.moved:
            return [Explanation(UNWRITTEN, 1.0)]
        if quick:
            return _partly(single)
        for kind in (edits, operands):
            changed = self._tried(((h,) for h in kind.of_rule(self.row)), LONGER)
            if full := _full(changed):
                return sorted(full, key=lambda x: len(x.text))
            single += changed
        if full := _full(self._tried(self._pairs())):
            return full
        return _partly(single + self._by_slot())

    def _of_names(self, known: Sequence[str]) -> list[Hypothesis]:
        """The hypotheses that explained something before."""
        every = (*self.named, *edits.of_rule(self.row), *operands.of_rule(self.row))
        return [h for h in every if any(_begins(text, h.name) for text in known)]

    def _by_known(self, before: Sequence[Hypothesis]) -> list[Explanation]:
        """By hypotheses that explained something before, alone or with one of storage or precision."""
        narrow = [h for h in self.named if h.kind in ("arithmetic", "narrow")]
        both = [pair for pair in itertools.product(before, narrow) if pair[0].kind != pair[1].kind]
        for candidates in ([(h,) for h in before], both):
            if full := _full(self._tried(candidates)):
                return full
        return _partly(self._tried((h,) for h in before))

    def _by_slot(self) -> list[Explanation]:
        """An explanation of each slot by itself, from states that are right: mistakes that have nothing in common."""
        slots = dict.fromkeys(name for x in self.wrong for name, mask in x.wrong.items() if mask.any())
        if len(slots) < 2:
            return []
        texts, explained = [], 0
        counts = {name: sum(int(x.wrong[name].sum()) for x in self.wrong if name in x.wrong) for name in slots}
        for name in slots:
            part = self._of_slot(name)
            for hypotheses in (self.named, edits.of_rule(self.row), operands.of_rule(self.row)):
                if full := _full(part._tried((h,) for h in hypotheses)):
                    texts.append(f"{name}: {full[0].text}")
                    explained += counts[name]
                    break
        return [Explanation("; ".join(texts), explained / sum(counts.values()))] if texts else []

    def _of_slot(self, name: str) -> "Explainer":
        """The same of one slot."""
        part = copy.copy(self)
        part.wrong = [x for x in (x.of_slot(name) for x in self.wrong) if x.is_wrong]
        part.right = [x for x in (x.of_slot(name) for x in (*self.right, *self.wrong)) if not x.is_wrong][:MOST]
        return part

    def _pairs(self) -> Iterator[tuple[Hypothesis, Hypothesis]]:
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
        changed = self._changed(tensor, (hypothesis,)) if right else None
        near = None if changed is None else self._near(tensor, changed, (hypothesis,))
        return near is None or all(near[name].mean() >= 1 - SPOILT for name in right if name in near)

    def _tried(self, candidates: Iterable[tuple[Hypothesis, ...]], seconds: float = SECONDS) -> list[Explanation]:
        until, explanations = time.process_time() + seconds, []
        for hypotheses in candidates:
            if time.process_time() > until:
                break
            explanation = self._explanation(hypotheses)
            if explanation and explanation.share >= PARTLY:
                explanations.append(explanation)
        return explanations

    def _explanation(self, hypotheses: tuple[Hypothesis, ...]) -> Explanation | None:
        """The share of the wrong elements that are as the hypotheses have it, less that of tensors they spoil."""
        first = self._changed(self.wrong[0], hypotheses)
        if first is not None and not self._worth(self.wrong[0], first, hypotheses):
            return None
        explained = total = bounded = 0
        spoilt: list[Tensor] = []
        for tensor in self.wrong:
            inside = self._inside(tensor, hypotheses)
            if inside is None:
                continue
            for name, (within, known) in inside.items():
                mask = tensor.wrong[name]
                explained += int((within & mask & known).sum())
                bounded += int((mask & known).sum())
                total += int(mask.sum())
            spoils = any(_spoils_right(tensor, name, *masks) for name, masks in inside.items())
            spoilt += [tensor] * spoils
            if (spoils and tensor is self.wrong[0]) or (total and explained < PARTLY * total):
                return None
        if not explained:
            return None
        return self._of_share(" and ".join(h.name for h in hypotheses), explained / bounded, spoilt, hypotheses)

    def _of_share(
        self, text: str, share: float, spoilt: list[Tensor], hypotheses: tuple[Hypothesis, ...]
    ) -> Explanation:
        """An explanation of a share, less that of the tensors that are spoilt, unless these are of other steps."""
        if not spoilt:
            spoilt = [x for x in self.right if self._spoils(x, hypotheses)]
            if steps := _steps(self.wrong, spoilt) if share >= ENOUGH else "":
                return Explanation(f"{text}, {steps}", share)
        return Explanation(text, share * (1 - len(spoilt) / (len(self.wrong) + len(self.right))))

    def _spoils(self, tensor: Tensor, hypotheses: tuple[Hypothesis, ...]) -> bool:
        inside = self._inside(tensor, hypotheses) or {}
        return any((known & ~x).sum() > SPOILT * x.size for x, known in inside.values())

    def _as_it_is(self, tensor: Tensor) -> tuple[Situation, Inputs | None]:
        """A tensor as the rule has it, and what that is given."""
        key = id(tensor.case), tensor.tensor
        if key not in self.known:
            flushes, rule = bool(self.trial.fixed.get(FLUSHES)), base_rule(self.row)
            situation = of_case(tensor.case, tensor.tensor, rule, self.trial.real, flushes, tensor.elements)
            self.known[key] = situation, situation.inputs()
        return self.known[key]

    def _changed(self, tensor: Tensor, hypotheses: tuple[Hypothesis, ...]) -> Situation | None:
        """A tensor as hypotheses have it; ``None`` if they say nothing of it."""
        changed = as_it_is = self._as_it_is(tensor)[0]
        for hypothesis in hypotheses:
            after = hypothesis.change(changed)
            changed = changed if after is None else after
        return None if changed is as_it_is else changed

    def _near(
        self, tensor: Tensor, changed: Situation, hypotheses: Sequence[Hypothesis]
    ) -> dict[str, np.ndarray] | None:  # fmt: skip
        """By slot, which elements are about as a hypothesis has it, by a glance; ``None`` if that does not tell."""
        if changed.narrow or changed.worked or changed.rounded or tensor.case.choices.get("rounding") == "stochastic":
            return None
        try:
            with np.errstate(all="ignore"):
                edit = all(h.kind == "edit" for h in hypotheses)  # which changes the rule alone
                plain = changed.plain(self._as_it_is(tensor)[1] if edit else None) or {}
                off = {name: abs(plain[name] - x) for name, x in tensor.wide.items() if name in plain}
                if any(x.shape != tensor.room[name].shape for name, x in off.items()):
                    raise ValueError("expected an element for each of the tensor's")
                return {name: ~(x > tensor.room[name]) for name, x in off.items()}
        except NO_RULE:
            return {name: np.zeros(room.shape, bool) for name, room in tensor.room.items()}

    def _worth(self, tensor: Tensor, changed: Situation, hypotheses: Sequence[Hypothesis]) -> bool:
        """Whether a hypothesis may explain enough of a tensor to be worth its bound."""
        near = self._near(tensor, changed, hypotheses)
        if near is None:
            return True
        explained = sum(int((x & tensor.wrong[name]).sum()) for name, x in near.items())
        total = sum(int(tensor.wrong[name].sum()) for name in near)
        return not total or explained >= PARTLY * total

    def _inside(self, tensor: Tensor, hypotheses: tuple[Hypothesis, ...]) -> dict[str, Any] | None:
        """Which elements are within the bound of a hypothesis, and which have one; ``None`` if it says nothing."""
        changed = self._changed(tensor, hypotheses)
        if changed is None:
            return {name: (~mask, np.ones_like(mask)) for name, mask in tensor.wrong.items()}
        try:
            with np.errstate(all="ignore"):
                expected = changed.expected()
        except (Unanswered, *NO_RULE):
            return None
        if expected is None:
            return None
        inside = {}
        for name, x in tensor.got.items():
            if name in expected:
                ratio = np.ravel(memory(expected[name].ratio(x.reshape(expected[name].value.shape))))
                held = np.ravel(memory(x)).astype(np.float64)
                lost = np.isnan(ratio) & ~np.isfinite(held)  # as a division by 0 has it
                inside[name] = (ratio <= 1) | lost, ~np.isnan(ratio) | lost
        return inside


def _steps(wrong: Sequence[Tensor], spoilt: Sequence[Tensor]) -> str:
    """Which steps a mistake is of, if those of the tensors that it is not of come all before or all after."""
    of_wrong, of_others = {x.case.count for x in wrong}, {x.case.count for x in spoilt}
    if of_others and max(of_wrong) < min(of_others):
        return "in the first step alone" if max(of_wrong) == 1 else f"up to step {max(of_wrong)}"
    if of_others and min(of_wrong) > max(of_others):
        return f"from step {min(of_wrong)} on"
    return ""


def _begins(text: str, name: str) -> bool:
    """Whether an explanation is a hypothesis's, of some steps maybe, or begins with it."""
    return text == name or text.startswith((f"{name}, in", f"{name}, up", f"{name}, from", f"{name} and "))


def _partly(explanations: list[Explanation]) -> list[Explanation]:
    """Those that explain most of it."""
    return [x for x in sorted(explanations, key=lambda x: -x.share) if x.share >= PARTLY][:3]


def _full(explanations: list[Explanation]) -> list[Explanation]:
    """Those that explain all, each once."""
    best = sorted((x for x in explanations if x.share >= ENOUGH), key=lambda x: -x.share)
    return list({x.text: x for x in best[::-1]}.values())[::-1]


def _spoils_right(tensor: Tensor, name: str, within: Any, known: Any) -> bool:
    """Whether what is right in a slot would be wrong."""
    mask = tensor.wrong[name]
    right = known & ~mask & ~tensor.unchanged[name]
    return bool((right & ~within).sum() > SPOILT * mask.size)


def _has(trial: Trial, name: str) -> bool:
    """Whether a number or a choice is the subject's, given or fixed."""
    return trial.subject.takes(name) or name in trial.fixed
