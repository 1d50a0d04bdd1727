"""A case: what some steps of LARS are given. An outcome: what they leave behind, compared bit for bit."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.ulp import same_bits

Outcome = dict[str, list[Any]]


class Case(NamedTuple):
    """The arrays of a list of tensors, the named choices, and the hyperparameters of each step.

    ``grads`` and ``masters`` may hold ``None``; ``masters`` may be ``None`` as a whole.
    """

    params: list[np.ndarray]
    grads: list[np.ndarray | None]
    velocities: list[np.ndarray]
    masters: list[np.ndarray | None] | None
    steps: list[dict[str, Any]]
    choices: dict[str, str]

    def copy(self) -> "Case":
        """The same case with arrays of its own, of the same memory order."""
        masters = None if self.masters is None else _copies(self.masters)
        return self._replace(
            params=_copies(self.params), grads=_copies(self.grads), velocities=_copies(self.velocities), masters=masters
        )

    def only(self, indices: Sequence[int]) -> "Case":
        """The case of some of the tensors, in the order given."""

        def pick(values: Any) -> Any:
            return [values[i] for i in indices] if isinstance(values, list) else values

        steps = [{name: pick(value) for name, value in step.items()} for step in self.steps]
        return Case(*(pick(values) for values in self[:4]), steps, self.choices)  # type: ignore[call-arg]

    def outcome(self) -> Outcome:
        """The arrays that a step writes, as they are now."""
        masters = self.masters if self.masters is not None else [None] * len(self.params)
        return {"params": self.params, "velocities": self.velocities, "masters": masters}

    def __repr__(self) -> str:
        columns = zip(self.params, self.grads, self.velocities, self.outcome()["masters"], strict=True)
        tensors = "; ".join(
            f"{p.shape} {' '.join('None' if x is None else x.dtype.name for x in (p, *rest))}" for p, *rest in columns
        )
        return f"Case({tensors}; steps={self.steps}, choices={self.choices})"


Run = Callable[[Case], Outcome]


def runner(merged_step: Callable[..., None]) -> Run:
    """What a merged step in the signature of ``refopt.cpu.merged_lars_momentum`` makes of a case."""

    def run(case: Case) -> Outcome:
        case = case.copy()
        for hyper in case.steps:
            merged_step(
                case.params, case.grads, case.velocities, master_params=case.masters, **hyper, **case.choices
            )  # fmt: skip
        return case.outcome()

    return run


def dtype_of(name: str) -> np.dtype:
    """The NumPy dtype of a storage type; bfloat16 is that of ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def assert_same(expected: Outcome, got: Outcome, clause: str) -> None:
    """Raise an AssertionError that names the clause and the first element that differs."""
    __tracebackhide__ = True
    for slot, arrays in expected.items():
        for i, (x, y) in enumerate(zip(arrays, got[slot], strict=True)):
            if x is None:
                continue
            where = f"{clause}: {slot}[{i}]"
            assert x.shape == y.shape, f"{where}: expected shape {x.shape}, got {y.shape}"
            assert x.dtype == y.dtype, f"{where}: expected {x.dtype}, got {y.dtype}"
            x, y = np.ascontiguousarray(x).reshape(-1), np.ascontiguousarray(y).reshape(-1)
            same = same_bits(x, y)
            if not same.all():
                k = int(np.argmin(same))
                raise AssertionError(
                    f"{where}, element {k} of {x.size} {x.dtype} ({(~same).sum()} differ): "
                    f"expected {_shown(x[k])}, got {_shown(y[k])}"
                )


def _shown(value: Any) -> str:
    return f"{float(value)!r} (0x{value.tobytes()[::-1].hex()})"


def _copies(arrays: Sequence[np.ndarray | None]) -> list[Any]:
    return [None if x is None else x.copy(order="K") for x in arrays]
