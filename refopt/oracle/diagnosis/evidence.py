"""The evidence that hypotheses must explain: a step's results for single tensors, and which elements are wrong."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.oracle.cases import in_one_order
from refopt.oracle.exact.cases import Case, memory
from refopt.oracle.trial import Trial

WHOLE = 2**11  # the most elements of a tensor that is examined in full, for elementwise rules
PIECE = 64  # elements from the start, the middle and the end of larger ones
TENSORS = 3  # the most tensors of one case
NEAR = 2.0**-11  # the largest error, relative to the step's change, of a hypothesis whose bound is computed


class Tensor(NamedTuple):
    """A step's results for one tensor, and which elements of each slot are wrong by the rule.

    Attributes:
        law: the law that the case broke, if any.
        elements: the examined elements, in memory order; all if the rule has norms.
        got: the results, by slot.
        wrong: by slot, which elements are outside of the bound.
        unchanged: by slot, which of the wrong ones have their old values.
        wide: by slot, ``got`` in fp64, flat.
        room: by slot, how far from ``got`` a hypothesis may be in fp64 for its bound to be computed.
    """

    law: str
    case: Case
    tensor: int
    elements: Any
    got: dict[str, np.ndarray]
    wrong: dict[str, np.ndarray]
    unchanged: dict[str, np.ndarray]
    wide: dict[str, np.ndarray]
    room: dict[str, np.ndarray]

    @property
    def is_wrong(self) -> bool:
        return any(mask.any() for mask in self.wrong.values())

    @property
    def telling(self) -> tuple[bool, int, int]:
        """How much there is to explain: more in later steps, whose states depend on many gradients."""
        masks = self.wrong.values()
        return self.case.count > 1, sum(bool(x.any()) for x in masks), sum(int(x.sum()) for x in masks)

    def of_slot(self, name: str) -> "Tensor":
        """The evidence of only one slot."""
        one = ({name: x[name]} if name in x else {} for x in self[4:])
        return Tensor(self.law, self.case, self.tensor, self.elements, *one)

    def without_unchanged(self) -> "Tensor":
        return self._replace(wrong={name: mask & ~self.unchanged[name] for name, mask in self.wrong.items()})


def tensors_of(trial: Trial, case: Case, first: int = 0, law: str = "") -> list[Tensor]:
    """Some tensors of a case that have gradients, as the subject now leaves them; tensor ``first`` is included."""
    try:
        case, got = in_one_order(case, trial.run(case))
    except Exception:  # raised by the subject
        return []
    present = [i for i, g in enumerate(case.grads) if g is not None and g.size]
    some = dict.fromkeys([*(i for i in (first,) if i in present), *spread(present, TENSORS)])
    return [_tensor(trial, case, i, got, law) for i in some]


def _tensor(trial: Trial, case: Case, i: int, got: Any, law: str) -> Tensor:
    before = case.tensor(i)
    size, one = before["params"].size, trial.row.scalars
    elements: Any = slice(None)
    if trial.row.elementwise and size > WHOLE:
        ends = np.arange(PIECE), np.arange(size - PIECE, size)
        elements = np.unique(np.concatenate([*ends, np.linspace(0, size - 1, PIECE).astype(int)]))
        before = {name: x if x is None or name in one else memory(x)[elements] for name, x in before.items()}
        expected = trial.expected_of_arrays(case, i, before)
    else:
        expected = trial.expected(case, i)
    held, wrong, unchanged, wide, room = {}, {}, {}, {}, {}
    for name, values in got.items():
        if name in expected and values[i] is not None:
            whole = name in one or isinstance(elements, slice)
            x = held[name] = values[i] if whole else memory(values[i])[elements]
            wrong[name] = np.ravel(memory(expected[name].ratio(x.reshape(expected[name].value.shape)))) > 1
            now, old = (np.ravel(memory(y)).astype(np.float64) for y in (x, before[name]))
            wide[name] = now
            unchanged[name] = ((now == old) | (np.isnan(now) & np.isnan(old))) & wrong[name]
            digits = 2.0 ** (-7 if x.dtype.name == "bfloat16" else -10) if x.dtype.itemsize == 2 else 2.0**-20
            with np.errstate(all="ignore"):
                error = np.ravel(memory(expected[name].error))
                room[name] = 64 * error + NEAR * abs(now - old) + digits * abs(now)
                off = abs(now - np.ravel(memory(expected[name].value)))  # a hypothesis must make this small
                closer = np.maximum(error + (digits * abs(now) if x.dtype.itemsize == 2 else 0), off / 4)
                room[name] = np.where(wrong[name], np.fmin(room[name], closer), room[name])
    return Tensor(law, case, i, elements, held, wrong, unchanged, wide, room)


def spread(things: Sequence[Any], most: int) -> list[Any]:
    """Some entries of a list, evenly from start to end."""
    if len(things) <= most:
        return list(things)
    return [things[round(k * (len(things) - 1) / (most - 1))] for k in range(most)]
