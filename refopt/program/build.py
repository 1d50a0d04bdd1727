"""The usual training step of a list of parameters, as a program: what passes start from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import ROUTINES, Routine
from refopt.checks.arguments import chosen, collected, flag, names, number, shown, whole
from refopt.checks.dtypes import ITEM_SIZES, arithmetic_name
from refopt.program.ops import Op, Var, extents_of
from refopt.program.program import Program


class Config(NamedTuple):
    """Dtypes of parameters, gradients, states, and of masters if there are any."""

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
_EARLY = "beta1", "beta2"  # whose running powers other ops may advance


def step_program(
    params: Iterable[tuple[str, tuple[int, ...]]],
    optimizer: str | Mapping[str, str],
    *,
    config: str | Config | Mapping[str, str | Config] = "fp32",
    world_size: int = 1,
    early: bool = False,
    grad_dtype: str | Mapping[str, str] | None = None,
    optional: Iterable[str] = (),
    sparse: Iterable[str] = (),
    layer: Callable[[str], str] | None = None,
    **numbers: Any,
) -> Program:
    """The program of a step that averages gradients over ranks and updates every parameter by an op of its own.

    Per parameter, from the last to the first, an op of type ``backward`` and, with several ranks, one ``all_reduce``
    and one ``scale`` by 1 / world_size (numerics, N10); then, from the first to the last, one op of the optimizer.

    Whatever is said here of a parameter may be one thing for all, or a mapping that has it by the parameter's name.

    Args:
        params: names and shapes in the model's order, such as the tensors of a `refopt.catalog.workloads.Workload`.
        optimizer: a name of `refopt.catalog.ROUTINES`.
        config: dtypes: a name of `CONFIGS`, or a `Config`.
        world_size: the number of ranks.
        early: for routines whose scalars are powers of beta: have these advanced by a ``scale`` op each, behind all
            updates, as Paddle did in 2019; by default the update does it.
        grad_dtype: another dtype for gradients than that of the config.
        optional: optional states that are there, such as ``moment2_max``.
        sparse: names of parameters whose gradients are sparse: with several ranks they are gathered, not reduced, by an
            ``all_gather`` op, and then added up by a ``scatter_add`` op to a dense gradient of the arithmetic type.
        layer: the layer that a parameter belongs to; by default its name up to the first dot.
        numbers: hyperparameters and choices of the optimizer.

    Returns:
        A program without startup ops. Variables are named as in Paddle, so that ``fc`` has ``fc@GRAD``,
        ``fc_moment1_0``, ``fc_beta1_pow_acc_0``, ``fc_fp32_master_0``; states start at 0, scalars where the routine
        says, masters at the parameter.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    world_size = whole("step_program: world_size", world_size, 1)
    early = flag("step_program: early", early)
    listed = named_shapes("step_program: params", params)
    if not isinstance(optimizer, Mapping):
        find_routine("step_program: optimizer", optimizer)  # though there may be no parameters
    if len({name for name, _ in listed}) != len(listed):
        raise ValueError("step_program: params: expected each name once, got one again")
    rows, wanted = frozenset(names("step_program: sparse", sparse)), names("step_program: optional", optional)
    if layer is not None and not callable(layer):
        raise TypeError(f"step_program: layer: expected a function of a name, or None, got {shown(layer)}")
    for unknown in sorted(rows - {name for name, _ in listed}):
        raise ValueError(f"step_program: sparse: expected names of params, got {unknown!r}")
    steps = []
    for name, shape in listed:
        entry = _of(config, name, "config")
        if not isinstance(entry, Config) and not (isinstance(entry, str) and entry in CONFIGS):
            expected = f"expected one of {', '.join(CONFIGS)} or a Config"
            raise ValueError(f"step_program: config: {expected}, got {shown(entry)}")
        dtypes = entry if isinstance(entry, Config) else CONFIGS[entry]
        for key, dtype in dtypes._asdict().items():
            if not (key == "master" and dtype is None):
                chosen(f"step_program: config: {key}", dtype, ITEM_SIZES)
        grad = _of(grad_dtype, name, "grad_dtype")
        if grad is not None and not (isinstance(grad, str) and grad in ITEM_SIZES):
            raise ValueError(f"step_program: grad_dtype: expected one of {', '.join(ITEM_SIZES)}, got {shown(grad)}")
        own = {key: _of(value, name, key) for key, value in numbers.items()}
        for key, value in own.items():
            if isinstance(value, list | tuple | np.ndarray):
                expected = "expected one value, or a mapping that has one for each parameter"
                raise TypeError(f"step_program: {key}: {expected}, got {shown(value)}")
        routine = find_routine("step_program: optimizer", _of(optimizer, name, "optimizer"))
        for hyper in (hyper for hyper in routine.hypers if hyper.name in own):
            checked = number(f"step_program: {hyper.name}", own[hyper.name])
            if type(own[hyper.name]) not in (int, float):
                own[hyper.name] = checked
        for choice in routine.choices.keys() & own.keys():
            own[choice] = chosen(f"step_program: {choice}", own[choice], routine.choices[choice])
        steps.append(
            _Step(
                name, shape, routine,
                dtypes._replace(grad=grad or dtypes.grad), world_size, early, own, name in rows, wanted,
                layer(name) if layer else name.partition(".")[0],
            )
        )  # fmt: skip
    known = {hyper.name for step in steps for hyper in step.routine.hypers}
    known |= {choice for step in steps for choice in step.routine.choices}
    for unknown in sorted(set(numbers) - known) if steps else ():
        raise TypeError(f"step_program: {unknown}: expected one of {', '.join(sorted(known))}")
    states = {slot.name for step in steps for slot in step.routine.slots if slot.optional} - {"master_params"}
    for unknown in sorted(set(wanted) - states) if steps else ():
        expected = ", ".join(sorted(states)) or "none"
        raise ValueError(f"step_program: optional: expected some of {expected}, got {unknown!r}")
    ops = [op for step in reversed(steps) for op in step.gradient()]
    ops += [step.update() for step in steps]
    ops += [op for step in steps for op in step.advances()]
    vars: dict[str, Var] = {}
    owners: dict[str, str] = {}
    for step in steps:
        for var in step.vars():
            check_owner("step_program", owners, var.name, step.name)
            vars[var.name] = var
    program = Program(vars, (), tuple(ops))
    program.check()
    return program


def check_owner(where: str, owners: dict[str, str], name: str, owner: str) -> None:
    """Note of which parameter a variable is, in a program that is being made; raises if it is another's already.

    Args:
        where: the function, for the error.
        owners: by name, what has been noted so far.
        name: the variable.
        owner: the parameter, or "" for what is of the whole step.
    """
    if owners.setdefault(name, owner) != owner:
        raise ValueError(f"{where}: params: expected names that nothing else in the program has, got {name!r}")


def named_shapes(where: str, params: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of parameters.

    Raises:
        TypeError, ValueError: naming the entry, by its index or its name.
    """
    pairs = []
    for k, entry in enumerate(collected(where, params, "names and shapes")):
        pair = collected(f"{where}[{k}]", entry, "a name and a shape")
        if len(pair) != 2:
            raise TypeError(f"{where}[{k}]: expected a name and a shape, got {shown(entry)}")
        name, shape = pair
        if not isinstance(name, str) or not name:
            raise TypeError(f"{where}[{k}]: expected a name and a shape, got {shown(name)} for the name")
        pairs.append((name, extents_of(f"{where}: {name!r}: shape", shape, ITEM_SIZES["float64"])))
    return pairs


def _of(value: Any, name: str, key: str) -> Any:
    """What holds for a parameter: the value, or its entry."""
    if isinstance(value, str | float) or not isinstance(value, Mapping):
        return value
    if name not in value:
        raise ValueError(f"step_program: {key}: expected an entry for every parameter, got none for {name!r}")
    return value[name]


def find_routine(where: str, name: str) -> Routine:
    """A routine by name; raises if there is none."""
    return ROUTINES[chosen(where, name, ROUTINES)]


@dataclass(frozen=True)
class _Step:
    """What belongs to one parameter."""

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
        """All numbers and choices of the update, by default what the catalogue says."""
        routine = self.routine
        default = {hyper.name: hyper.default for hyper in routine.hypers}
        default |= {choice: values[0] for choice, values in routine.choices.items()}
        return {name: self.numbers.get(name, value) for name, value in default.items()}

    def vars(self) -> list[Var]:
        variables = [Var(self.name, self.shape, self.dtypes.param, persistable=True)]
        variables.append(Var(self.grad, self.shape, self.dtypes.grad, sparse=self.sparse))
        if self.sparse:
            variables.append(Var(self.dense_grad, self.shape, self.real))
            if self.ranks > 1:
                variables.append(Var(f"{self.grad}@GATHERED", self.shape, self.dtypes.grad, sparse=True))
        for slot, name in self.slots.items():
            if slot in self.routine.scalars:
                variables.append(Var(name, (1,), self.real, persistable=True, initial=self._first(slot)))
            elif slot == "master_params":
                # A remainder is 0 where the parameter is exact.
                first_of = 0.0 if self.dtypes.master == "uint16" else self.name
                variables.append(Var(name, self.shape, self.dtypes.master or "", persistable=True, initial=first_of))
            elif slot in self.routine.states:
                variables.append(Var(name, self.shape, self.dtypes.state, persistable=True, initial=0.0))
        return variables

    def _first(self, scalar: str) -> float:
        """What a scalar holds before the first step."""
        first = self._initials[scalar]
        if first is None:
            raise ValueError(f"step_program: {self.routine.name}: {scalar}: expected an initial value in the catalogue")
        return float(self.attrs[first] if isinstance(first, str) else first)

    @cached_property
    def _initials(self) -> dict[str, float | str | None]:
        return {slot.name: slot.initial for slot in self.routine.slots if slot.scalar}

    def gradient(self) -> list[Op]:
        """Backward, and what makes one gradient of those of all ranks."""
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
        carried = set() if self.early else set(self.routine.scalars)
        written = {"params", "master_params", *self.routine.states, *carried}
        outputs = {slot: names for slot, names in slots.items() if slot in written}
        return self._op(self.routine.name, "optimize", slots, outputs, self.attrs)

    def advances(self) -> list[Op]:
        """The ops that advance powers in the place of the update."""
        if not self.early:
            return []
        for name, base in self._initials.items():
            if base not in _EARLY:
                raise ValueError(f"step_program: early: expected scalars that are powers of beta, got {name}")
        slots, attrs = self.slots, self.attrs
        both = [([slots[name]], {"scale": attrs[str(base)]}) for name, base in self._initials.items()]
        return [self._op("scale", "optimize", {"x": x}, {"out": x}, number) for x, number in both]

    def _op(self, kind: str, role: str, inputs: Any, outputs: Any, attrs: Mapping[str, Any] | None = None) -> Op:
        return Op(kind, inputs, outputs, attrs or {}, role, self.layer)
