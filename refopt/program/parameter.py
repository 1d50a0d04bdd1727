"""One parameter in a step: its dtypes, its variables, and its ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from refopt.catalog import Routine, Slot
from refopt.checks.dtypes import REMAINDERS, arithmetic_name, stored_shape
from refopt.cpu.blocks import Blocks
from refopt.program.model import Op, Var


class Config(NamedTuple):
    """Dtypes of parameters, gradients, states, and of masters or remainders (numerics, N15) if there are any.

    ``"uint8"`` stands for states in 8 bits (numerics, N21).
    """

    param: str
    grad: str
    state: str
    master: str | None = None


CONFIGS = {
    "fp32": Config("float32", "float32", "float32"),
    "fp64": Config("float64", "float64", "float64"),
    "amp": Config("float16", "float16", "float32", "float32"),
    "bf16": Config("bfloat16", "bfloat16", "float32", "float32"),
}
# Names of variables as Paddle's optimizers make them: PARAM_moment1_0 and so on.
_NAMES = {"beta1_pow": "beta1_pow_acc", "beta2_pow": "beta2_pow_acc", "velocities": "velocity"}
_NAMES |= {"master_params": "fp32_master"}
_EARLY = "beta1", "beta2"  # other ops may advance their running powers


@dataclass(frozen=True)
class Parameter:
    """The variables and ops of one parameter."""

    name: str
    shape: tuple[int, ...]
    routine: Routine
    dtypes: Config
    ranks: int
    early: bool
    numbers: Mapping[str, Any]
    sparse: bool
    optional: tuple[str, ...]
    layer: str

    @property
    def grad(self) -> str:
        return f"{self.name}@GRAD"

    @property
    def dense_grad(self) -> str:
        return f"{self.grad}@DENSE" if self.sparse else self.grad

    @cached_property
    def real(self) -> str:
        return arithmetic_name(self.dtypes.param)

    @cached_property
    def slots(self) -> dict[str, str]:
        """The variable in each slot of the update."""
        names = {"params": self.name, "grads": self.dense_grad}
        for slot in self.routine.slots:
            there = self.dtypes.master is not None if slot.name == "master_params" else slot.name in self.optional
            if slot.name not in names and (there or not slot.optional):
                names[slot.name] = f"{self.name}_{_NAMES.get(slot.name, slot.name)}_0"
        return names

    @cached_property
    def attrs(self) -> dict[str, Any]:
        """All numbers and choices of the update, by default those of the catalogue."""
        return {name: self.numbers.get(name, value) for name, value in self.routine.defaults.items()}

    def vars(self) -> list[Var]:
        variables = [Var(self.name, self.shape, self.dtypes.param, persistable=True)]
        variables.append(Var(self.grad, self.shape, self.dtypes.grad, sparse=self.sparse))
        if self.sparse:
            variables.append(Var(self.dense_grad, self.shape, self.real))
            if self.ranks > 1:
                variables.append(Var(f"{self.grad}@GATHERED", self.shape, self.dtypes.grad, sparse=True))
        for row in self.routine.slots[2:]:  # the first two are parameters and gradients
            name = self.slots.get(row.name)
            if name is None:
                continue
            if row.scalar:
                variables.append(Var(name, (1,), self.real, persistable=True, initial=self._first(row)))
            elif row.name == "master_params":
                # The remainder of an exact parameter is 0.
                first_of = 0.0 if self.dtypes.master in REMAINDERS else self.name
                variables.append(Var(name, self.shape, self.dtypes.master or "", persistable=True, initial=first_of))
            else:
                state = self.dtypes.state
                own = (self._row_shape(), self.real) if row.by_row else (stored_shape(state, self.shape), state)
                variables.append(Var(name, *own, persistable=True, initial=0.0))
        return variables

    def _row_shape(self) -> tuple[int, ...]:
        """The shape of a state by row; without blocks that fit, any: checks of the update refuse them."""
        blocks = self.attrs["blocks"]
        return blocks.row_shape(self.shape) if isinstance(blocks, Blocks) else self.shape

    def _first(self, scalar: Slot) -> float:
        """A scalar's value before the first step."""
        first = scalar.initial
        if first is None:
            where = f"step_program: {self.routine.name}: {scalar.name}"
            raise ValueError(f"{where}: expected an initial value in the catalogue")
        return float(self.attrs[first] if isinstance(first, str) else first)

    def gradient(self) -> list[Op]:
        """The backward op, and those that average the gradient over ranks."""
        ops = [self._op("backward", "backward", {"params": [self.name]}, {"grads": [self.grad]})]
        ranks = {"ranks": self.ranks}
        grad = self.grad
        if self.sparse:
            if self.ranks > 1:
                grad = f"{self.grad}@GATHERED"
                ops.append(self._op("all_gather", "communicate", {"x": [self.grad]}, {"out": [grad]}, ranks))
            ops.append(self._op("scatter_add", "communicate", {"x": [grad]}, {"out": [self.dense_grad]}))
        elif self.ranks > 1:
            ops.append(self._op("all_reduce", "communicate", {"x": [grad]}, {"out": [grad]}, ranks))
        if self.ranks > 1:
            x = [self.dense_grad]
            ops.append(self._op("scale", "communicate", {"x": x}, {"out": x}, {"scale": 1 / self.ranks}))
        return ops

    def update(self) -> Op:
        """The optimizer's op."""
        slots = {slot: [name] for slot, name in self.slots.items()}
        written = {row.name for row in self.routine.slots if row.written and not (row.scalar and self.early)}
        outputs = {slot: names for slot, names in slots.items() if slot in written}
        return self._op(self.routine.name, "optimize", slots, outputs, self.attrs)

    def advances(self) -> list[Op]:
        """The ops that advance powers instead of the update."""
        if not self.early:
            return []
        ops = []
        for row in self.routine.slots:
            if row.scalar and row.initial not in _EARLY:
                raise ValueError(f"step_program: early: expected scalars that are powers of beta, got {row.name}")
            if row.scalar:
                x = [self.slots[row.name]]
                ops.append(self._op("scale", "optimize", {"x": x}, {"out": x}, {"scale": self.attrs[str(row.initial)]}))
        return ops

    def _op(self, kind: str, role: str, inputs: Any, outputs: Any, attrs: Mapping[str, Any] | None = None) -> Op:
        return Op(kind, inputs, outputs, attrs or {}, role, self.layer)
