"""PyTorch optimizers: `torch.optim`, and any other class derived from `torch.optim.Optimizer`.

Their states and numbers have the names of `refopt.state.peers`, as in most such classes. A case's states are put into
``optimizer.state``; initial states are left to the optimizer itself.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks.arguments import kind_of
from refopt.checks.dtypes import SIZES, arithmetic, arithmetic_name, numpy_dtype
from refopt.oracle.cases import CODED, COUNTED, NUMBERS, Dtypes, alike, choices_of, number, usual
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.memory import Placed
from refopt.oracle.subject import GATE, Lacks, Wrong
from refopt.oracle.subjects.arrays import Torch
from refopt.oracle.subjects.names import accepted, public_name, refusing
from refopt.oracle.subjects.shared import as_told, check_dtypes, is_initial, renamed
from refopt.oracle.subjects.torch_peers import ON_REQUEST, TIMM, TORCH, USUAL, peer_of
from refopt.oracle.subjects.torch_run import States, TorchRun
from refopt.oracle.variants import by_request, defaults
from refopt.state.peers import NONE, SWITCHED, to_group

SHARING = "load_state_dict of torch.optim.Optimizer, which it inherits, shares tensors: pytorch/pytorch#196083"
MASTERS = "master_params"
EXACT_LR = 0.125  # a power of 2, so that states with and without it have the same digits
ALL = (*TORCH.values(), *TIMM.values(), *USUAL.values())


class TorchOptimizer:
    """A class derived from ``torch.optim.Optimizer``, or a function ``make(params, **numbers)`` that returns one.

    Attributes:
        kind: the class.
        excused: why it may fail a law through PyTorch's fault, by id.
        accepts: the possible options: defaults by name.
        values: the numbers of its group, by its own names.
        peer: its names for the states and numbers of the routine; ``counter`` and ``master`` are those of the step
            count and of a parameter's master.
        coded: whether its states are in few bits, so that they are neither set nor read.
        fixed: refopt's numbers and choices that it fixes.
        dtypes: those in which it is checked by default.
        always: optional states that it always has.
        notes: remarks for the reader of a report.
    """

    dtypes: tuple[str, ...] = ("float32", "float64", "float16", "bfloat16")
    in_place, recompiled = True, False
    peers = ALL

    def __init__(
        self, row: Routine | None, make: Callable[..., Any], name: str, *, options: Mapping[str, Any],
        accepts: Mapping[str, Any], device: str, names: Mapping[str, str] = NONE, kind: type | None = None,
        coded: bool = False,
    ) -> None:
        self.row: Any = row
        self.coded, self.dtypes = coded, CODED if coded else self.dtypes
        self.make, self.options, self.name, self.accepts = make, dict(options), name, dict(accepts)
        self.arrays = Torch(device)
        self.torch = self.arrays.torch
        self.notes: list[str] = []
        self.group: Mapping[str, Any] = self.options
        self.fixed: dict[str, Any] = {}
        self.always: tuple[str, ...] = ()
        self.numbers: dict[str, Any] = {}
        if row is not None:
            self._as_routine(names, kind)
        with refusing(self.name):  # with a matrix, which more optimizers take than a vector
            first = self.built([self.parameter(self.ones(np.float32))])
        self.kind = type(first)
        of_base = self.torch.optim.Optimizer.load_state_dict
        self.excused = {"L28": SHARING} if self.kind.load_state_dict is of_base else {}
        self.group = {name: x for name, x in first.param_groups[0].items() if name != "params"}
        self.values: dict[str, Any] = _betas_apart({**self.options, **self.group})
        closure = inspect.signature(first.step).parameters.get("closure")
        self.takes_closure = closure is not None
        self.needs_closure = closure is not None and closure.default is closure.empty
        self.named = "found_inf" in inspect.signature(first.step).parameters
        self.scales = bool(getattr(first, "_step_supports_amp_scaling", False))
        self.gated = bool(self.named or (self.group.get("fused", True) and (self.scales or self._looks(first))))
        self.module = str(getattr(self.kind.step, "__module__", ""))
        if row is not None:
            self._settle()

    def _as_routine(self, names: Mapping[str, str], kind: type | None) -> None:
        """Find the names and the numbers of a first step."""
        peer, without_lr = peer_of(self.row.name, kind, self.options)
        self.peer, self.counter = renamed(peer, names), names.get("step", "step")
        self.master = names.get(MASTERS, "master_param")
        self.without_lr = tuple(slot for slot in without_lr if slot in peer.states)
        self.asleep: set[str] = set()
        self.states = States(self)
        numbers, choices = defaults(self.row.name, by_request(self.row.name))
        self._neutral: dict[str, Any] = numbers | choices
        told = self.peer.numbers.keys() - {*ON_REQUEST}
        value = usual if self.coded else number
        self.numbers = {h.name: value(h) if h.name in told else h.default for h in self.row.hypers}
        self.numbers |= {ours: peer.only[x] for ours, x in self.peer.numbers.items() if x in peer.only}
        self.numbers |= choices_of(self.row) | dict(peer.choices)
        self.always = tuple(ours for ours, theirs in peer.switches.items() if self.options.get(theirs))

    def _settle(self) -> None:
        """Find the numbers that the options or the rule fix."""
        peer, own = self.peer, _betas_apart(self.options)
        if self.module.startswith(("torch.optim.", "timm.")) and not self.scales:
            self.dtypes = self.dtypes[:2]
            self.notes.append("16-bit dtypes on request: unfused, each operation is rounded to the parameter's dtype")
        self.fixed |= peer.choices
        for ours, theirs in peer.numbers.items():
            name = ours if ours in own else theirs
            if name in own:
                self.fixed[ours] = _ours(ours, own[name] if ours in self.row.choices else float(own[name]))
            elif ours in ON_REQUEST and self.group.get(theirs) == self._neutral[ours]:
                self.asleep.add(ours)
            elif theirs in peer.only and theirs in self.group:
                self.fixed[ours] = peer.only[theirs]
                self.notes.append(f"{theirs} is {peer.only[theirs]}: otherwise its rule differs from {self.row.name}")
        if self.without_lr:
            self.fixed.setdefault("lr", EXACT_LR)
        for name, value in peer.only.items():
            if name not in peer.numbers.values() and self.group.get(name, value) != value:
                self.notes.append(f"{name}={self.group[name]!r}: the rule of {self.row.name} needs {value!r}")

    def ones(self, dtype: Any) -> np.ndarray:
        """A parameter, or its gradient, to examine the optimizer with."""
        return np.ones((4, 4), dtype)

    def parameter(self, x: Any) -> Any:
        """A parameter; a plain tensor for a differentiable step, which cannot write a leaf that requires grad."""
        tensor = self.arrays.of(x) if isinstance(x, np.ndarray) else x
        return tensor if self.group.get("differentiable") else self.torch.nn.Parameter(tensor)

    def _looks(self, optimizer: Any) -> bool:
        """Whether a step on one matrix reads the optimizer's ``found_inf``, in any function."""
        kind, seen = type(optimizer), set()

        class Watched(kind):  # type: ignore[misc, valid-type]
            def __getattribute__(self, name: str) -> Any:
                seen.add(name)
                return super().__getattribute__(name)

        try:
            for p in optimizer.param_groups[0]["params"]:
                p.grad = self.torch.ones_like(p)
            optimizer.__class__ = Watched
            optimizer.step()
        except Exception:  # a case will show what it raises
            pass
        finally:
            optimizer.__class__ = kind
        return "found_inf" in seen

    def called(self, routine: str) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """Its names for the numbers of a routine, and those that it fixes."""
        peer = peer_of(routine, self.kind, self.options)[0]
        return peer.numbers, peer.choices if (routine, self.kind.__name__) in TIMM else {}

    def built(self, params: list[Any], numbers: Any = None, optional: tuple[str, ...] | None = None) -> Any:
        """An optimizer of parameters or groups, with the numbers of a routine's step; by default usual ones."""
        row, optional = numbers or self.numbers, self.always if optional is None else optional
        group = self.grouped(row, optional) if row else {}
        try:
            optimizer = self.make(params, **{name: x for name, x in group.items() if name in self.accepts}
                                  | self.options)
        except ValueError as error:  # numbers, shapes, dtypes or groups that it does not take
            raise NotImplementedError(str(error)) from error
        if not isinstance(optimizer, self.torch.optim.Optimizer):
            raise Wrong(f"expected an optimizer of PyTorch, got {kind_of(optimizer)}")
        if row:
            self._number(optimizer, [], [row], optional)
        return optimizer

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> TorchRun:
        return TorchRun(self, params, saved, apart)

    def takes(self, what: str) -> bool:
        if what in GATE:
            return self.scales
        slot = next((slot for slot in self.row.slots if slot.name == what), None)
        if slot is None:
            theirs = self.peer.numbers.get(what)
            names = "betas" if theirs in ("beta1", "beta2") else theirs, theirs
            known = any(name in self.group or name in self.accepts for name in names)
            return known and what not in self.fixed and what not in self.asleep
        if what == MASTERS:
            return any(self.stores(dtype).master for dtype in self.dtypes if SIZES[dtype] == 2)
        if slot.optional:
            switch = self.peer.switches.get(what, "")
            return switch in self.group and self.options.get(switch, True)
        return what in ("params", "grads") or what in self.peer.states or self.follows(what)

    def follows(self, slot: str) -> bool:
        """Whether a scalar follows from the step count."""
        return self.peer.counts and slot in COUNTED and slot in self.row.scalars

    def stores(self, dtype: str) -> Dtypes:
        """The dtypes of a tensor's slots: states may be wider than the parameter, and it may have a master."""
        try:
            entry = self.states.template(numpy_dtype(dtype), self.numbers, ()).entry
        except Exception:  # a case of the step law will show it
            return alike(dtype)
        kinds = {name: str(x.dtype)[6:] for name, x in entry.items() if isinstance(x, self.torch.Tensor)}  # torch.x
        states = {kinds.get(theirs) for ours, theirs in self.peer.states.items() if ours not in self.row.scalars}
        real = arithmetic_name(dtype)
        return Dtypes(dtype, dtype, real if states - {None} == {real} else dtype, kinds.get(self.master))

    def run(self, case: Case) -> Outcome:
        if not len(case):
            raise Lacks("an empty list of parameters")
        check_dtypes(case, self.dtypes, self.stores)
        if self.group.get("capturable") and self.arrays.device.type == "cpu" and self.module.startswith("torch.optim."):
            raise Lacks("capturable=True needs tensors on a GPU: device='cuda'")
        optional, rows = self.optional(case), [self.rows(case, step) for step in case.steps]
        run = TorchRun(self, case.params, None, len(rows[0]) > 1, rows[0][0], optional)
        self._check_changes(run.optimizer, rows, optional)
        if not is_initial(case, self.peer.states):
            run.fill(case, rows[0], optional)
        run.put_masters(case.lists()[MASTERS])
        for step, numbers in zip(case.steps, rows, strict=True):
            self._number(run.optimizer, run._params, numbers, optional)
            run.step(case.grads, **self._gate(step, case.params[0].dtype))
        self.again = partial(run.results, case, rows[-1])
        return self.again()

    def optional(self, case: Case) -> tuple[str, ...]:
        """The optional states of a case, each of which all tensors or none must have."""
        some = {name: [x is not None for x in case.lists()[name]] for name in self.peer.switches}
        for name, there in some.items():
            if any(there) and not all(there):
                raise Lacks(f"{name} for only some tensors")
        return tuple(name for name, there in some.items() if any(there))

    def rows(self, case: Case, step: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The numbers and choices of a step, rounded to the arithmetic: one row for all tensors, or one for each."""
        real: Any = arithmetic(case.params[0].dtype.name)
        named = {name: x for name, x in step.items() if name not in GATE}
        apart = any(isinstance(x, list) for x in named.values())
        return [
            {name: as_told(self.row, name, real(x[i] if isinstance(x, list) else x)) for name, x in named.items()}
            | case.choices
            for i in range(len(case) if apart else 1)
        ]

    def _number(self, optimizer: Any, params: list[Any], rows: list[dict[str, Any]], optional: tuple[str, ...]) -> None:
        """Set numbers in the groups: one row for all, or one per tensor; options are kept."""
        for group in optimizer.param_groups:
            members = {id(p) for p in group["params"]}
            own = rows if len(rows) == 1 else [row for p, row in zip(params, rows, strict=True) if id(p) in members]
            if any(row != own[0] for row in own):
                raise Lacks("numbers for each tensor of a group")
            numbers = self.grouped(own[0], optional) if own else {}
            for name in [name for name in numbers if name in group and name not in self.options]:
                tensor = isinstance(group[name], self.torch.Tensor)  # as torchao has its learning rate
                group[name] = self.states.like(group[name], numbers[name]) if tensor else numbers[name]

    def _check_changes(self, optimizer: Any, rows: list[list[dict[str, Any]]], optional: tuple[str, ...]) -> None:
        """Refuse changing numbers that are in no group."""
        if all(row == rows[0] for row in rows):
            return
        known = {*optimizer.param_groups[0], *self.options, "beta1", "beta2"}
        outside = [name for name in self.grouped(rows[0][0], optional) if name in self.accepts and name not in known]
        if outside:
            raise Lacks(f"steps with changing numbers: {outside[0]} is in no group")

    def grouped(self, numbers: Mapping[str, Any], optional: tuple[str, ...]) -> dict[str, Any]:
        """Numbers and switches by the optimizer's names; options set the rest."""
        try:
            numbers = self._neutral | dict(numbers) | dict(self.peer.choices)  # its rule may be checked with other ones
            group = to_group("check", self.row, numbers, dict.fromkeys(optional), self.peer)
        except ValueError as error:
            raise Lacks(str(error)) from None
        group |= {name: numbers[name] for name in ("beta1", "beta2") if name in numbers}
        left_alone = self.peer.only.keys() - self.peer.numbers.values()
        return {name: x for name, x in group.items() if name not in left_alone}

    def _gate(self, step: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
        """The scale and flag that ``torch.amp.GradScaler`` passes to fused optimizers."""
        factor, flag = (None if x is None else float(x.reshape(-1)[0]) for x in map(step.get, GATE))
        if flag not in (None, 0, 1):
            raise Lacks("found_inf is 0 or 1 in PyTorch")
        scale = None if factor is None else float(np.divide(1.0, factor))
        held = None if scale is None else float(np.float32(scale))
        if dtype == np.float64 and held != scale:
            raise Lacks("grad_scale is fp32 in PyTorch")
        return {"found_inf": flag, "scale": scale}


def _betas_apart(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with a pair of betas as two numbers."""
    own = dict(options)
    if isinstance(own.get("betas"), tuple | list) and len(own["betas"]) == 2:
        own["beta1"], own["beta2"] = own.pop("betas")
    return own


def _ours(name: str, value: Any) -> Any:
    """The value of an option as refopt's number or choice."""
    if name in SWITCHED:
        return next(choice for choice, switch in SWITCHED[name].items() if switch == bool(value))
    return 0.96**value if name == "decay_base" else value


def of_torch(
    torch: Any, row: Routine | None, subject: Any, names: Mapping[str, str], options: Mapping[str, Any], device: str,
    coded: bool = False,
) -> TorchOptimizer | None:
    """The optimizer of a class, an instance, a partial or a function of parameters; ``None`` for anything else."""
    held: dict[str, Any] = {}
    if isinstance(subject, torch.optim.Optimizer):
        group = {name: x for name, x in subject.param_groups[0].items() if name != "params"}
        subject, held = type(subject), {**subject.defaults, **group}
    kind = subject if isinstance(subject, type) else None
    if kind is not None and not issubclass(kind, torch.optim.Optimizer):
        return None
    accepts = accepted(kind) if kind is not None else _beside_params(subject, {*names.values()})
    if accepts is None:
        return None
    numbers = set() if row is None else {"betas", *renamed(peer_of(row.name, kind, {})[0], names).numbers.values()}
    # An instance's numbers vary with cases; its options are kept.
    kept = {x: held[x] for x in accepts if x in held and x not in numbers and (row is None or held[x] != accepts[x])}
    options = kept | dict(options)
    told = ({"names": names} if names else {}) | ({"device": device} if device != "cpu" else {})
    name = public_name(subject, options, told)
    if row is None and "lr" in accepts:
        options = {"lr": float(NUMBERS["lr"])} | options  # by which 0 is divided as in Python
    for _ in range(2):
        optimizer = TorchOptimizer(
            row, subject, name, options=options, accepts=accepts, device=device, names=names, kind=kind, coded=coded
        )
        if row is None or optimizer.kind is kind:
            break
        kind = optimizer.kind  # of what a function has returned
    return optimizer


def _beside_params(function: Callable[..., Any], more: set[str]) -> dict[str, Any] | None:
    """What a function takes in addition to parameters: defaults by name; ``None`` if it requires other arguments."""
    try:
        first, *rest = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    known = {"lr", "betas", *more, *(x for peer in ALL for x in peer.numbers.values())} - {"nesterov"}
    if first.kind is first.VAR_POSITIONAL or "grads" in (first.name, *(p.name for p in rest)):
        return None
    if any(p.kind is p.VAR_POSITIONAL or (p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
                                          and p.name not in known) for p in rest):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in rest):
        return dict.fromkeys(known - {"beta1", "beta2"}, inspect.Parameter.empty)
    return {p.name: p.default for p in rest}
