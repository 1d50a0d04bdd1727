"""How much of a step's results a hypothesis explains, and whether it contradicts right ones."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from refopt.oracle.diagnosis.evidence import Tensor, spread, tensors_of
from refopt.oracle.diagnosis.failure import Failure
from refopt.oracle.diagnosis.situation import Hypothesis, Inputs, Situation, base_rule, of_case
from refopt.oracle.exact.cases import Case, memory
from refopt.oracle.trial import FLUSHES, Trial

FIRST, OTHERS, RIGHT = 6, 2, 24  # tensors that are looked at: of the first law, of each other, and right ones
ENOUGH = 0.9995  # of what a hypothesis has to explain
SPOILT = 0.01  # of a tensor's elements that it may make wrong
PARTLY = 0.25
FEWEST = 3  # elements that a share of the update is told by
GLANCES = 10  # that computing a bound takes as long as
AS_LONG = 2**14  # elements for which a glance takes twice as long as for none
ITERATED = 20  # glances that one at a rule that iterates matrices takes as long as
ROUGHLY = 0.1  # of its bound, that errors of a rough operation use: a wider one explains whatever is small
OF_MATRICES = 0.03  # the same of a bound by probability, of about six deviations


class Explanation(NamedTuple):
    """A hypothesis, the share of wrong elements that it explains, how many these are, and of which laws.

    ``bent``: other steps or shapes contradict it, so it is limited to some. ``spoilt``: how many right elements,
    too few to contradict it, it makes wrong.
    """

    text: str
    share: float
    elements: int = 0
    laws: frozenset[str] = frozenset()
    bent: bool = False
    spoilt: int = 0


class Work:
    """How much work is left, in glances at small tensors: no clock, so that each machine finds the same.

    Attributes:
        left: a glance, which evaluates a rule without bounds, takes about 0.2 ms.
    """

    def __init__(self, glances: float) -> None:
        self.left = glances

    def spend(self, tensor: Tensor, glances: int = 1) -> None:
        """Subtract what some glances at a tensor take."""
        self.left -= glances * (1 + max(x.size for x in tensor.wide.values()) / AS_LONG)


class Weighing:
    """The wrong and right results of a subject in one dtype.

    Args:
        trial: the subject and the rule.
        failures: those in which the outcome of one step is wrong, the first law's first.
        passed: other cases, which an explanation must leave right.
        glances: how much work it may do, see `Work`.
    """

    def __init__(self, trial: Trial, failures: Sequence[Failure], passed: Sequence[Case], glances: float) -> None:
        self.trial, self.row = trial, trial.row
        self.work = Work(glances / ITERATED if self.row.matrix_arguments else glances)
        tensors: list[Tensor] = []
        failures = [x for x in failures if not _is_skipped(x.case)]
        for law in dict.fromkeys(x.law for x in failures):
            cases = spread([x for x in failures if x.law == law], OTHERS if tensors else FIRST)
            tensors += [t for x in cases for t in tensors_of(trial, x.case, x.tensor, law)]
        right, wrong = ([x for x in tensors if x.is_wrong == is_wrong] for is_wrong in (False, True))
        moved = [x for x in (x.without_unchanged() for x in wrong) if x.is_wrong]
        self.moved = bool(moved and wrong) and moved[0].law == wrong[0].law
        some = moved if self.moved else wrong
        self.wrong: list[Tensor] = []
        for law in dict.fromkeys(x.law for x in some):
            mine = sorted((x for x in some if x.law == law), key=lambda x: x.telling, reverse=True)
            self.wrong += spread(mine, OTHERS if self.wrong else FIRST)
        laws = {x.law for x in self.wrong}
        self.still = {law: [x for x in wrong if x.law == law] for law in {x.law for x in wrong} - laws}
        of_axes = [x for x in passed if any(p.ndim > 1 for p in x.params)]
        passed = [*spread([x for x in passed if not _is_skipped(x)], RIGHT), *spread(of_axes, OTHERS)]
        self.right = spread(right, FIRST)
        self.passed: list[Case | list[Tensor]] = [*passed]  # cases, or their right tensors once they are needed
        self.known: dict[tuple[int, int], tuple[Situation, Inputs | None]] = {}

    def _explanation(self, hypotheses: tuple[Hypothesis, ...]) -> Explanation | None:
        """What hypotheses explain; ``None`` if they contradict right results.

        The share refers to the elements of the laws that are fully explained, or else to those of the first law.
        """
        first = self.wrong[0]
        changed = self._changed(first, hypotheses)
        if changed is not None and not self._worth(first, changed, hypotheses):
            return None
        # By law: elements that are explained, that have a bound, that are wrong, the sum of the former's ratios, and
        # right elements that are made wrong.
        counts: dict[str, list[float]] = {}
        failed: set[str] = set()
        for tensor in self.wrong:
            if tensor.law in failed:
                continue
            found = self._counted(tensor, hypotheses)
            if found is None:
                failed.add(tensor.law)
                if tensor is first:
                    return None
                continue
            of_law = counts.setdefault(tensor.law, [0, 0, 0, 0.0, 0])
            of_law[:] = (x + y for x, y in zip(of_law, found, strict=True))
            if of_law[0] < PARTLY * of_law[2]:
                failed.add(tensor.law)
                if tensor.law == first.law:
                    return None
        whole = {law for law, (x, bounded, *_) in counts.items() if law not in failed and 0 < ENOUGH * bounded <= x}
        laws = frozenset(whole if first.law in whole else [first.law])
        explained, bounded, off = (sum(counts[law][k] for law in laws) for k in (0, 1, 3))
        if not explained:
            return None
        text, share = " and ".join(h.name for h in hypotheses), explained / bounded
        least = OF_MATRICES if self.row.matrix_arguments else ROUGHLY
        if any(h.kind == "rough" for h in hypotheses) and (off < least * explained or not self._scattered()):
            return None
        bent = False
        spoilt = [x for x in self._others() if self._spoils(x, hypotheses)]
        if spoilt:
            mine = [x for x in self.wrong if x.law in laws]
            limited = _axes(mine, spoilt) or _steps(mine, spoilt, self.row.elementwise)
            if not limited or share < ENOUGH:
                return None
            text, bent = f"{text}, {limited}", True
        also = {law for law in self.still if first.law in whole and self._explains_all(self.still[law], hypotheses)}
        return Explanation(text, share, int(explained), laws | also, bent, int(sum(counts[law][4] for law in laws)))

    def _explains_all(self, tensors: Sequence[Tensor], hypotheses: tuple[Hypothesis, ...]) -> bool:
        """Whether hypotheses explain all wrong elements of some tensors."""
        counts = [self._counted(x, hypotheses) for x in tensors]
        return all(x and x[0] >= ENOUGH * x[1] > 0 for x in counts)

    def _counted(self, tensor: Tensor, hypotheses: tuple[Hypothesis, ...]) -> tuple[int, int, int, float, int] | None:
        """Of wrong elements, those explained, those with a bound, and all, and the ratios of the first, added up.

        Last, how many right ones are spoilt; ``None`` if these are many.
        """
        ratios = self._ratios(tensor, hypotheses)
        wide = any(h.kind == "arithmetic" for h in hypotheses)  # of which some elements have no bound
        if ratios is None or any(_spoils_right(tensor, name, ratio, wide) for name, ratio in ratios.items()):
            return None
        wrong = [(tensor.wrong[name], ratio[tensor.wrong[name]]) for name, ratio in ratios.items()]
        explained = [ratio[ratio <= 1] for _, ratio in wrong]
        return (
            sum(x.size for x in explained), sum(int((~np.isnan(ratio)).sum()) for _, ratio in wrong),
            sum(int(mask.sum()) for mask, _ in wrong), sum(float(x.sum()) for x in explained),
            sum(int((ratio[~tensor.wrong[name]] > 1).sum()) for name, ratio in ratios.items()),
        )

    def _others(self) -> Iterator[Tensor]:
        """Right tensors: those next to wrong ones, and those of passed cases, as far as needed."""
        yield from self.right
        for k, x in enumerate(self.passed):
            if isinstance(x, Case):
                self.passed[k] = x = [t for t in tensors_of(self.trial, x) if not t.is_wrong]
            yield from x

    def _scattered(self) -> bool:
        """Whether the parameters are off by another share of the update in each element, either way, as by rounding."""
        for off in (self._off(tensor, self._before(tensor)) for tensor in self.wrong):
            if off.size:
                either = off.size < FEWEST**2 or off.min() < 0 < off.max()
                return bool(either and np.ptp(off) > 0.3 * abs(off).max())
        return False

    def _before(self, tensor: Tensor) -> np.ndarray:
        """The parameter's elements before the step."""
        return np.ravel(memory(tensor.case.params[tensor.tensor])[tensor.elements]).astype(np.float64)

    def _off(self, tensor: Tensor, before: np.ndarray) -> np.ndarray:
        """By which shares of what has been changed wrong elements of a parameter are off; nothing of a few elements."""
        expected = (self._as_it_is(tensor)[0].plain() or {}).get("params")
        if expected is None or tensor.wrong["params"].sum() < FEWEST:
            return np.zeros(0)
        with np.errstate(all="ignore"):
            off = (tensor.wide["params"] - expected) / (expected - before)
        return off[tensor.wrong["params"] & np.isfinite(off)]

    def _spoils(self, tensor: Tensor, hypotheses: tuple[Hypothesis, ...]) -> bool:
        changed = self._changed(tensor, hypotheses)
        near = None if changed is None else self._near(tensor, changed, hypotheses)
        if near is not None and any((~x).sum() > SPOILT * x.size for x in near.values()):
            return True  # unless there is no bound, which the next lines tell
        ratios = self._ratios(tensor, hypotheses) or {}
        return any((x > 1).sum() > SPOILT * x.size for x in ratios.values())

    def _as_it_is(self, tensor: Tensor) -> tuple[Situation, Inputs | None]:
        """A tensor as the rule has it, and what that is given."""
        key = id(tensor.case), tensor.tensor
        if key not in self.known:
            flushes, rule = bool(self.trial.fixed.get(FLUSHES)), base_rule(self.row)
            situation = of_case(tensor.case, tensor.tensor, rule, self.trial.real, flushes, tensor.elements)
            self.known[key] = situation, situation.inputs()
        return self.known[key]

    def _changed(self, tensor: Tensor, hypotheses: tuple[Hypothesis, ...]) -> Situation | None:
        """A tensor as hypotheses have it; ``None`` if they say nothing of it, or cannot be asked."""
        changed = as_it_is = self._as_it_is(tensor)[0]
        for hypothesis in hypotheses:
            try:
                after = hypothesis.change(changed)
            except Exception:  # of arrays that nobody has thought of: what fails is no hypothesis
                return None
            changed = changed if after is None else after
        return None if changed is as_it_is else changed

    def _near(
        self, tensor: Tensor, changed: Situation, hypotheses: Sequence[Hypothesis]
    ) -> dict[str, np.ndarray] | None:
        """By slot, which elements are about as a hypothesis has it, by a glance; ``None`` if that does not tell."""
        if changed.is_rough or tensor.case.choices.get("rounding") == "stochastic":
            return None
        self.work.spend(tensor)
        try:
            with np.errstate(all="ignore"):
                edit = all(h.kind == "edit" for h in hypotheses)  # which changes the rule alone
                plain = changed.plain(self._as_it_is(tensor)[1] if edit else None) or {}
                off = {name: abs(plain[name] - x) for name, x in tensor.wide.items() if name in plain}
                if any(x.shape != tensor.room[name].shape for name, x in off.items()):
                    raise ValueError("expected an element for each of the tensor's")
                return {name: ~(x > tensor.room[name]) for name, x in off.items()}
        except Exception:  # what fails is no hypothesis
            return {name: np.zeros(room.shape, bool) for name, room in tensor.room.items()}

    def _worth(self, tensor: Tensor, changed: Situation, hypotheses: Sequence[Hypothesis]) -> bool:
        """Whether a hypothesis may explain enough of a tensor to justify computing its bound."""
        near = self._near(tensor, changed, hypotheses)
        if near is None:
            return True
        explained = sum(int((x & tensor.wrong[name]).sum()) for name, x in near.items())
        total = sum(int(tensor.wrong[name].sum()) for name in near)
        return not total or explained >= PARTLY * total

    def _ratios(self, tensor: Tensor, hypotheses: tuple[Hypothesis, ...]) -> dict[str, np.ndarray] | None:
        """Errors over the bounds of hypotheses, NaN where there is none; ``None`` if they cannot be asked."""
        changed = self._changed(tensor, hypotheses)
        if changed is None:
            return {name: np.where(mask, np.inf, 0.0) for name, mask in tensor.wrong.items()}
        self.work.spend(tensor, GLANCES)
        try:
            with np.errstate(all="ignore"):
                expected = changed.expected()
        except Exception:
            return None
        if expected is None:
            return None
        ratios = {}
        for name, x in tensor.got.items():
            if name in expected:
                ratio = np.ravel(memory(expected[name].ratio(x.reshape(expected[name].value.shape))))
                held = np.ravel(memory(x)).astype(np.float64)
                lost = np.isnan(ratio) & ~np.isfinite(held)  # as a division by 0 has it
                ratios[name] = np.where(lost, 0.0, ratio)
        return ratios


def _is_skipped(case: Case) -> bool:
    """Whether the step must be skipped."""
    return any(np.any(step.get("found_inf")) for step in case.steps)


def _axes(wrong: Sequence[Tensor], spoilt: Sequence[Tensor]) -> str:
    """Whether a mistake affects tensors of one axis, and no matrices; or the reverse."""
    of_wrong, of_others = ({x.case.params[x.tensor].ndim > 1 for x in some} for some in (wrong, spoilt))
    if of_wrong & of_others or len(of_wrong | of_others) < 2:
        return ""
    return "for tensors of more than one axis" if True in of_wrong else "for tensors of one axis"


def _steps(wrong: Sequence[Tensor], spoilt: Sequence[Tensor], by_element: bool) -> str:
    """The steps that a mistake affects, if all unaffected tensors belong to earlier or all to later steps.

    One of these must have the same size and numbers as a wrong one, since otherwise these may make the difference.
    """

    def like(x: Tensor) -> tuple:
        numbers = sorted((name, str(value)) for name, value in x.case.numbers_of(x.tensor).items())
        return *numbers, *([] if by_element else [x.case.params[x.tensor].size])

    of_wrong, of_others = {x.case.count for x in wrong}, {x.case.count for x in spoilt}
    if not {like(x) for x in wrong} & {like(x) for x in spoilt}:
        return ""
    if max(of_wrong) < min(of_others):
        return "in the first step only" if max(of_wrong) == 1 else f"up to step {max(of_wrong)}"
    return f"from step {min(of_wrong)} on" if min(of_wrong) > max(of_others) else ""


def _spoils_right(tensor: Tensor, name: str, ratio: np.ndarray, wide: bool) -> bool:
    """Whether what is right in a slot would be wrong, or have no bound, unless bounds are ``wide``."""
    mask = tensor.wrong[name]
    right = ~mask & ~tensor.unchanged[name] & np.isfinite(tensor.wide[name])
    return bool((right & ((ratio > 1) | (np.isnan(ratio) & (not wide)))).sum() > SPOILT * mask.size)
