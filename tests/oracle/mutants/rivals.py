"""What other projects' own tests of optimizers say of a step: their sizes, numbers, counts of steps and tolerances.

The reference is `refopt.cpu` in place of theirs. A rival is a function of a step and a routine: True if its tests
fail, None if it has none of that routine. Where its model needs a framework, gradients are random of the same shapes.

- PyTorch, `test/test_optim.py` at c96bc81 and as it was when `test_fused_matches_forloop` had come to four dtypes, and
  `torch/testing/_internal/common_optimizers.py` of 2.13.0 (cf30153): `_test_derived_optimizers` with its model of
  tensors of 6, 3, 3 and 1 elements, 7 steps, no gradient in the third, a layer frozen in the fourth and fifth; a
  fifth tensor, which is to be empty, has no dimensions, so one element, and never a gradient.
  `test_mixed_device_dtype`, `test_fused_does_not_step_if_foundinf`, `test_step_is_noop_for_zero_grads`. Tolerances
  of `torch.testing.assert_close`. Left out: L2 decay where refopt has none, `maximize`, and tests of a falling loss.
- Apex, `tests/L0/run_optimizers` at 6424da3 (2026-07-08): `test_fused_optimizer.py`, `test_adam.py`, `test_lamb.py`,
  `test_fused_novograd.py`. The first axes of the five tensors of `test_multi_params`, 45 million elements, are divided
  by 64.
- optax, `optax/_src/alias_test.py` at 2edbcbe (2026-08-07): `test_optimization`, 10,000 steps.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from refopt.catalog import ROUTINES
from refopt.oracle.cases import alike, draw
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.exact.laws import reference
from refopt.oracle.subjects.function import Function

# rtol and atol of torch.testing.assert_close.
CLOSE = {"float16": (1e-3, 1e-5), "bfloat16": (0.016, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7)}


class Different(Exception):
    """What a rival's test fails by."""


class Twins:
    """A step and the reference, from the same parameters and no states.

    ``take`` takes a step of each. A step that is told one count is called for the tensors of each count. What the
    reference comes to does not depend on the step, and is kept for the next one that is tested in the same way.
    """

    known: ClassVar[dict[Any, list[Outcome]]] = {}

    def __init__(self, routine: str, step: Callable[..., Any], params: Sequence[np.ndarray], options: dict[str, Any]):
        row = ROUTINES[routine]
        self.subject = Function(row, step)
        given = dict(options)
        optional = given.pop("optional", [])
        numbers = {h.name: given.pop(h.name, h.default) for h in row.hypers}
        choices = {name: given.pop(name, values[0]) for name, values in row.choices.items()}
        if given or not all(self.subject.takes(name) for name in [*optional, *options.keys() - {"optional"}]):
            raise NotImplementedError("takes not all of the options")
        shapes, dtypes = [x.shape for x in params], [alike(x.dtype.name) for x in params]
        case = draw(row, shapes, dtypes, seed=0, numbers=numbers, choices=choices, optional=optional)
        case = case.replace(params=list(params))
        self.ours, self.theirs, self.counts = case.copy(), case.copy(), [1] * len(params)
        first = tuple((x.shape, x.dtype.name, float(np.sum(x, dtype=np.float64))) for x in params)
        self.kept, self.taken = self.known.setdefault((routine, str(options), first), []), 0

    def take(self, grads: Sequence[Any], **gate: Any) -> None:
        step = self.ours.steps[0] | gate
        before = self.ours.replace(grads=list(grads), steps=[step])
        if self.taken == len(self.kept):
            self.kept.append(reference(before))
        after = self.kept[self.taken]
        self.taken += 1
        slots = self.theirs.slots | {"grads": [None if g is None else g.copy() for g in grads]}
        for count in sorted(set(self.counts)) if self.subject.takes("step") else [self.counts[0]]:
            every = not self.subject.takes("step")
            indices = [i for i, c in enumerate(self.counts) if every or c == count]
            case = Case(self.ours.routine, slots, [step], self.ours.choices, count).only(indices)
            with np.errstate(all="ignore"):
                got = self.subject.run(case)
            for name, values in got.items():
                for i, x in zip(indices, values, strict=True):
                    if self.theirs.slots[name] is not None:
                        self.theirs.slots[name][i] = x
        self.ours = self.ours.replace(**{name: x for name, x in after.items() if self.ours.slots[name] is not None})
        skipped = gate.get("found_inf") is not None and gate["found_inf"][0] != 0
        self.counts = [c + (g is not None and not skipped) for c, g in zip(self.counts, grads, strict=True)]
        for name in self.ours.routine.scalars:
            if not self.subject.takes(name):
                self.theirs.slots[name] = [x.copy() for x in self.ours.slots[name]]

    def close(self, times: float = 1, states: bool = True, tensors: int | None = None) -> None:
        """As `torch.testing.assert_close`, NaN equal to none."""
        for name, values in self.ours.slots.items():
            if name == "params" or (states and values is not None and name in self.ours.routine.states):
                for x, y in list(zip(values, self.theirs.slots[name], strict=True))[:tensors]:
                    rtol, atol = (times * t for t in CLOSE[x.dtype.name])
                    x, y = x.astype(np.float64), np.asarray(y).astype(np.float64)
                    if not np.allclose(y, x, rtol=rtol, atol=atol):
                        raise Different(name)

    def within(self, largest: float, relative: float) -> None:
        """As Apex's `get_max_diff` of the parameters."""
        for x, y in zip(self.ours.slots["params"], self.theirs.slots["params"], strict=True):
            x, y = x.astype(np.float64), y.astype(np.float64)
            if x.size and not (abs(x - y).max() <= largest and abs((x - y) / x).max() <= relative):
                raise Different("params")

    def resync(self) -> None:
        self.theirs.slots["params"] = [x.copy() for x in self.ours.slots["params"]]


def verdict(tests: Iterator[Callable[[], None]]) -> bool | None:
    """Whether any of some tests fails; None if there is none."""
    taken = False
    for test in tests:
        try:
            test()
        except NotImplementedError:
            continue
        except Exception:  # an error of a step is one of its test
            return True
        taken = True
    return False if taken else None
