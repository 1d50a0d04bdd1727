"""Which hypotheses explain a step's results: named ones, changes of the rule, and pairs."""

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from refopt.oracle.diagnosis import edits, operands
from refopt.oracle.diagnosis.hypotheses import Hypothesis, named, scaled, without_update
from refopt.oracle.diagnosis.weighing import ENOUGH, FIRST, PARTLY, SPOILT, Explanation, Weighing

SHARES = {"edit": 0.75, "pair": 0.7}  # of the work that is left, for kinds of hypotheses that are many
UNWRITTEN = "elements are not written: they keep their old values"
ALIKE = 0.02  # how far apart, of itself, a factor may be that elements have in common
RANKS = {"rule": 0, "choice": 0, "power": 0, "number": 1}


class Explainer(Weighing):
    """What may be wrong with a subject in one dtype.

    Args:
        evidence: the arguments of `Weighing`.
    """

    def __init__(self, *evidence: Any) -> None:
        super().__init__(*evidence)
        self.named = [h for h in named(self.row) if all(self.trial.takes(x) or x in self.trial.fixed for x in h.needs)]

    def explanations(self, known: Sequence[str] = ()) -> list[Explanation]:
        """Those that explain the first law in full, and the most others; else those that explain part of it.

        Hypotheses with ``known`` names are tried first, alone and with others.
        """
        if not self.wrong:
            return []
        if known and (full := self._by_known(self._of_names(known))):
            return full
        if full := _full(single := self._tried((h,) for h in self.named if h.kind != "rough")):
            return full
        if not self.moved:
            laws = frozenset(x.law for x in self.wrong)
            return [Explanation(UNWRITTEN, 1.0, sum(x.telling[2] for x in self.wrong), laws)]
        for kind in (edits.of_rule(self.row), [*self._scaled()], operands.of_rule(self.row)):
            changed = self._tried(((h,) for h in kind), SHARES["edit"])
            if full := _full(changed):
                return sorted(full, key=lambda x: (-len(x.laws), len(x.text)))
            single += [x for x in changed if len(kind) > 2]  # a factor applies to all elements or none
        rough = ((h,) for h in self.named if h.kind == "rough")
        if full := _full(self._tried(rough)) or _full(self._tried(self._pairs(), SHARES["pair"])):
            return full
        return _partly(single + self._by_slot())

    def _scaled(self) -> Iterator[Hypothesis]:
        """Hypotheses that the update has a factor, for each step, if the elements of a tensor share one."""
        for apart in (False, True):
            factors: dict[int, float] = {}
            for tensor in self.wrong:
                numbers = {name: float(x) for name, x in self._as_it_is(tensor)[0].numbers.items()}
                old = self._before(tensor)
                off = self._off(tensor, without_update(old, numbers["lr"], numbers) if apart else old)
                if off.size and np.ptp(off) <= ALIKE * abs(np.median(off)):
                    x = float(np.median(off))
                    short = float(f"{x:.3g}")
                    factor = 1 + (short if abs(short - x) < 1e-3 * ALIKE * abs(x) else x)
                    if not _is_of(factor, numbers.values()):
                        factors.setdefault(tensor.case.count, factor)
            if factors:
                yield scaled(factors, apart)

    def _of_names(self, known: Sequence[str]) -> list[Hypothesis]:
        """The hypotheses that explained something before."""
        every = (*self.named, *edits.of_rule(self.row), *operands.of_rule(self.row))
        return [h for h in every if any(_begins(text, h.name) for text in known)]

    def _by_known(self, before: Sequence[Hypothesis]) -> list[Explanation]:
        """Explanations by hypotheses that worked before, alone or with one about storage or precision."""
        narrow = [h for h in self.named if h.kind in ("arithmetic", "narrow")]
        narrow += [h for h in operands.of_rule(self.row) if operands.NARROW in h.name]
        both = [pair for pair in itertools.product(before, narrow) if pair[0].kind != pair[1].kind]
        for candidates in ([(h,) for h in before], both):
            if full := _full(self._tried(candidates)):
                return full
        return []

    def _by_slot(self) -> list[Explanation]:
        """A separate explanation for each slot, from states that are right: independent mistakes."""
        slots = dict.fromkeys(name for x in self.wrong for name, mask in x.wrong.items() if mask.any())
        if len(slots) < 2:
            return []
        found: list[tuple[str, Explanation]] = []
        counts = {name: sum(int(x.wrong[name].sum()) for x in self.wrong if name in x.wrong) for name in slots}
        for name in slots:
            part = self._of_slot(name)
            for hypotheses in (self.named, edits.of_rule(self.row), operands.of_rule(self.row)):
                if full := _full(part._tried((h,) for h in hypotheses)):
                    found.append((name, full[0]))
                    break
        if not found:
            return []
        explained = sum(counts[name] for name, _ in found)
        laws = frozenset.intersection(*(x.laws for _, x in found)) if len(found) == len(slots) else frozenset()
        laws = laws or frozenset([self.wrong[0].law])
        text = "; ".join(f"{name}: {x.text}" for name, x in found)
        return [Explanation(text, explained / sum(counts.values()), explained, laws)]

    def _of_slot(self, name: str) -> "Explainer":
        """The same of one slot."""
        part = copy.copy(self)
        part.wrong = [x for x in (x.of_slot(name) for x in self.wrong) if x.is_wrong]
        right = (x.of_slot(name) for x in (*self.right, *self.wrong))
        part.right, part.passed = [x for x in right if not x.is_wrong][:FIRST], []
        return part

    def _pairs(self) -> Iterator[tuple[Hypothesis, Hypothesis]]:
        """Pairs of hypotheses that each affect wrong elements."""
        kept = [h for h in self.named if h.paired and self._keeps(h)]
        kept.sort(key=lambda h: RANKS.get(h.kind, 2))
        pairs = list(itertools.combinations(kept, 2))
        pairs.sort(key=lambda pair: sum(RANKS.get(h.kind, 2) for h in pair))
        for one, two in pairs:
            if (one.kind, one.about) != (two.kind, two.about) or one.kind == "rule":
                yield one, two

    def _keeps(self, hypothesis: Hypothesis) -> bool:
        """Whether a hypothesis keeps right slots of wrong tensors right."""
        tensor = self.wrong[0]
        right = [name for name, mask in tensor.wrong.items() if not mask.any() and not tensor.unchanged[name].any()]
        changed = self._changed(tensor, (hypothesis,)) if right else None
        near = None if changed is None else self._near(tensor, changed, (hypothesis,))
        return near is None or all(near[name].mean() >= 1 - SPOILT for name in right if name in near)

    def _tried(self, candidates: Iterable[tuple[Hypothesis, ...]], share: float = 1.0) -> list[Explanation]:
        """The candidates that explain anything, within a share of the remaining work."""
        kept, explanations = (1 - share) * self.work.left, []
        for hypotheses in candidates:
            if self.work.left <= kept:
                break
            explanation = self._explanation(hypotheses)
            if explanation and explanation.share >= PARTLY:
                explanations.append(explanation)
        return explanations


def _is_of(factor: float, numbers: Iterable[float]) -> bool:
    """Whether a factor is one of the step's numbers, 1 minus one, or the inverse: others then name it better."""
    own = [y for x in numbers for y in (x, 1 - x)]
    return any(abs(x - y) <= 1e-4 * abs(y) for x in (factor, 1 / factor if factor else factor) for y in own)


def _begins(text: str, name: str) -> bool:
    """Whether an explanation is a hypothesis, perhaps only for some steps, or begins with it."""
    return text == name or text.startswith(tuple(name + more for more in (", in", ", up", ", from", ", for", " and ")))


def _partly(explanations: list[Explanation]) -> list[Explanation]:
    """The explanations with the largest shares."""
    return [x for x in sorted(explanations, key=lambda x: -x.share) if x.share >= PARTLY][:3]


def _full(explanations: list[Explanation]) -> list[Explanation]:
    """The complete explanations, each once, those of most laws first, and of equal ones that of a slot not written."""
    full = [x for x in explanations if x.share >= ENOUGH]
    best = sorted(full, key=lambda x: (-len(x.laws), -x.share, x.spoilt, not x.text.endswith("not written")))
    return list({x.text: x for x in best[::-1]}.values())[::-1]
