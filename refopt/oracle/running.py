"""Runs: their data, parts of their results, and how far results may differ where sums may have another order."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refopt.checks.arguments import kind_of
from refopt.oracle.broken import Broken, Crashed, Skipped
from refopt.oracle.differing import largest, wide
from refopt.oracle.exact.cases import Outcome
from refopt.oracle.subject import Lacks

SMALL = 2.0**-16  # a relative change of the data, whose effect shows that of rounding
ROOM = 16  # the tolerance is this multiple of that effect
MOST = 0.25  # the largest tolerance, whatever is measured


@dataclass(frozen=True)
class Data:
    """What a run starts from and is given: parameters, and the gradients of each step, as arrays or `memory.Placed`."""

    params: Sequence[Any]
    grads: Sequence[Sequence[Any]]

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self.params)

    def only(self, indices: Sequence[int]) -> "Data":
        """Some of the tensors, in the order given."""
        return Data([self.params[i] for i in indices], [[of[i] for i in indices] for of in self.grads])

    def each(self, function: Callable[[Any], Any]) -> "Data":
        """The same with what a function makes of each array."""
        return Data([function(x) for x in self.params], [[function(x) for x in of] for of in self.grads])


def by_slot(params: list[Any], states: Sequence[Mapping[str, Any]]) -> Outcome:
    """The results of a run; ``None`` where a tensor lacks a state that others have."""
    names = dict.fromkeys(name for of in states for name in of if name != "params")
    return {"params": params, **{name: [of.get(name) for of in states] for name in names}}


def part(came: Outcome, indices: Sequence[int]) -> Outcome:
    """The results of some tensors."""
    return {name: [values[i] for i in indices] for name, values in came.items()}


def alike(one: Outcome, other: Outcome) -> bool:
    """Whether the results in one have the same bits in the other."""
    pairs = ((x, y) for name in one for x, y in zip(one[name], other[name], strict=True))
    return all(x is y or (x is not None and y is not None and x.tobytes() == y.tobytes()) for x, y in pairs)


def in_few_bits(subject: Any, came: Outcome) -> bool:
    """Whether a state of a tensor has elements of a byte; a function's were declared one by one."""
    bytes_ = any(x.size > 1 and x.dtype.itemsize == 1 for values in came.values() for x in values if x is not None)
    return bytes_ or getattr(subject, "is_function", False)


def why_not(subject: Any) -> str:
    """Why a subject cannot be run; empty if it can."""
    return getattr(subject, "why_not", "" if hasattr(subject, "start") else "it cannot be run: it has no start")


def state_dict_of(run: Any) -> Any:
    """What a run lets others load without a file; raises `Lacks` if that is nothing."""
    if not hasattr(run, "state_dict"):
        raise Lacks("loads no states in its own process")
    return run.state_dict()


@contextlib.contextmanager
def skipping(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Skip the case if the optimizer raises an error, or one of these; the end of its process does not count as one."""
    try:
        yield
    except Crashed:
        raise
    except Broken as broken:
        if errors and not isinstance(broken.__cause__, errors):
            raise
        error = f" (raises {kind_of(broken.__cause__)})" if broken.__cause__ else ""
        raise Skipped(what + error, lacks=True) from broken


def measured(trial: Any) -> dict[str, float]:
    """How much parameters and states may differ if sums may be taken in another order, by name.

    It is relative to a tensor's largest change: 16 times the effect of changing the data by 2^-16 or a unit in the last
    place. So an optimizer that computes in fewer bits than it stores, such as Muon in bf16, gets more room.
    """
    most: dict[str, float] = {}
    for shape in trial.shapes([45, 300, (15, 20)]):  # one at a time, as lists may be handled wrongly
        data = trial.data([shape])
        plain = trial.run(data)
        for k in range(3):
            rng = np.random.default_rng([trial.seed, 77, k])
            changed = data.each(lambda x, rng=rng: _perturbed(x, rng))
            other = trial.run(changed)
            for name in plain.keys() & other.keys():
                (x,), (y,) = plain[name], other[name]
                if name == "params":
                    x, y = wide(x) - wide(data.params[0]), wide(y) - wide(changed.params[0])
                scale = 0.0 if x.dtype.kind in "iub" or x.shape != y.shape else largest(wide(x))
                if scale:
                    most[name] = max(most.get(name, 0.0), largest(wide(x) - wide(y)) / scale)
    return {name: min(ROOM * (x + trial.eps), MOST) for name, x in most.items()}


def _perturbed(x: np.ndarray, rng: Any) -> np.ndarray:
    """Numbers changed by ``SMALL``, or by a unit in the last place if that is more."""
    sign = rng.choice([-1.0, 1.0], x.shape)
    near = (wide(x) * (1 + SMALL * sign)).astype(x.dtype)
    if x.dtype.itemsize > 2:
        return near
    bits = x.view(np.int16)
    return np.asarray(bits + rng.integers(-1, 2, x.shape).astype(np.int16)).view(x.dtype)
