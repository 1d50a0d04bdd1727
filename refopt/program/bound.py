"""A program with arrays, and with ranks, behind its names: made once, run in every step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any

import numpy as np

from refopt.checks.arguments import shown, whole
from refopt.checks.arrays import check_dense
from refopt.comm.mesh import Mesh, communicators
from refopt.program import ops, states
from refopt.program.backends import Backend, backend_of
from refopt.program.exclusive import Exclusive
from refopt.program.graph import Graph
from refopt.program.memory import refuse_shared
from refopt.program.model import UNKNOWN, Op, Var, mapping
from refopt.program.ops.collectives import BATCH, calls, sequence
from refopt.program.ops.context import Context, Gradients
from refopt.program.ops.runner import Runners
from refopt.program.program import Program, expect_program


class Bound(Exclusive, Context):
    """A program that can be run. Made by `bind`.

    Threads that call at the same time take turns, so that each step is made as a whole; with a communicator, calls are
    made in the thread that it is of. There are no copies: ``copy``, ``deepcopy`` and ``pickle`` are for the program.

    Attributes:
        arrays: by name of a variable, the array that it is now. Startup ops move tensors into buffers: from then on the
            array is a view, and the one that the caller has brought is left behind; see `copy_back`. A device reads
            scalars that an update advances, such as powers of beta, when the op is bound, so for others use `rebind`.
        steps: steps taken.
    """

    program: Program

    def __init__(
        self, program: Program, arrays: Mapping[str, Any], backend: str, comm: Any, gradients: Gradients, stream: Any,
        started: Iterable[str] = (),
    ) -> None:
        Exclusive.__init__(self, communicators(comm)[0])
        program.check()
        for op in (*program.startup, *program.main):
            if not ops.runs(op):
                raise ValueError(f"bind: {op.type}: expected a type that can be run, one of refopt.program.ops")
        Context.__init__(self, program, arrays, backend_of(backend, arrays, stream), comm, gradients)
        self._check_ranks()
        for name, array in arrays.items():
            self._check("bind", name, array)
        self._numbers: dict[str, Any] = {}
        self._main: Runners | None = None
        self._stepped_by = ""  # what takes the steps, if it is not this
        self.backend.require_subnormals()
        allocated, self._copies = _allocated(program, self._arrays, self.backend)
        self._arrays.update(allocated)
        for name in started:  # arrays that hold already what their variables start from
            if isinstance(first := program.vars[name].initial, str):
                self._copies.setdefault(first, []).append(name)
        if self.comm is not None:
            self.comm.agree(sequence(program, self.backend.chunk))
        for axis, group in self.axes.items():
            group.agree(sequence(program, self.backend.chunk, axis))
        for op in program.main:
            self._check_roots(op)

    def startup(self) -> None:
        """Run what is done once, and bind the ops of a step to the arrays as they then are.

        Raises:
            RuntimeError: the second time.
            ValueError: from an op that finds its arrays other than it needs them.
        """
        with self._turn("startup"):
            self.backend.require_subnormals()
            if self._main is not None:
                raise RuntimeError("Bound.startup: expected to be called once, got called again")
            begun = tuple(takewhile(lambda op: op.type in ("initialize", "broadcast"), self.program.startup))
            self._run_once(begun)
            if begun:  # what starts from something that has been broadcast starts from that
                _copy_first(self.program, self._arrays, self._copies, self.backend)
            self._run_once(self.program.startup[len(begun) :])
            self._main = Runners(ops.bind(self, op) for op in self.program.main)

    def _run_once(self, startup: Iterable[Op]) -> None:
        for op in startup:
            ops.bind(self, op).run()

    def step(self, **numbers: Any) -> None:
        """One step.

        Args:
            numbers: new hyperparameters, such as ``lr``, for all ops of routines that have them; they are kept for the
                steps to come.

        Raises:
            RuntimeError: before `startup`, or of a program that is stepped by a `placement.BoundSchedule`.
            TypeError, ValueError: naming the number, or the gradient in a mapping; nothing has been done then. Those of
                a function are made, and checked, one after the other, as the step goes on.
        """
        with self._turn("step"):
            main = self._ready("step")
            main.check_numbers(numbers)
            self.check_gradients(main)
            self.backend.require_subnormals()
            main.set(numbers)
            self._numbers |= numbers
            main.run()
            self.steps += 1

    def rebind(self, arrays: Mapping[str, Any]) -> None:
        """Put other arrays of the same shapes and dtypes in place of some, between steps.

        As in `bind`, what ops change shares no memory with another array, whether new or bound already.

        Raises:
            ValueError, TypeError: naming the variable, or from an op that needs its arrays where they were, such as the
                reduction of a group; everything is then as before.
        """
        arrays = mapping("rebind: arrays", arrays)
        with self._turn("rebind"):
            self._ready("rebind")
            self._rebind(arrays)

    def _rebind(self, arrays: Mapping[str, Any]) -> None:
        for name, array in arrays.items():
            self._check("rebind", name, array)
        refuse_shared("rebind", self.program, arrays, self.backend, self._arrays, self._brought)
        old = dict(self._arrays)  # all of them, since ops that cut arrays put the blocks in as they are bound
        self._arrays.update(arrays)
        try:
            main = Runners(ops.bind(self, op) for op in self.program.main)
        except BaseException:
            self._arrays.update(old)
            raise
        main.set(self._numbers)
        self._main = main
        self._brought.update(arrays)

    def read(self, name: str) -> np.ndarray:
        """A host copy of a variable's array, a NumPy array; of one that is cut, put together from its blocks.

        Raises:
            ValueError: if there is no dense variable of that name, or other ranks have blocks of it.
        """
        if isinstance(name, str) and name not in self._arrays and name in self.program.vars:
            return states.whole_of(self, name)
        return super().read(name)

    def state_dict(self) -> dict[str, Any]:
        """What a run has to keep to go on as if it had not stopped. All ranks call it, and all get the whole.

        Returns:
            Arrays of NumPy, each whole and under the name that it has without passes, wherever blocks or shards of it
            are: ``"params"`` by name; ``"states"``, by parameter a dictionary of its update as `refopt.state` describes
            it, with one tensor; ``"others"``, such as the loss scale. Further ``"numbers"``, those that `step` was
            given; ``"steps"``, how many were taken; and ``"version"``.

        Raises:
            RuntimeError: before `startup`.
        """
        with self._turn("state_dict"):
            self._ready("state_dict")
            return states.saved(self, self._numbers)

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` of this program has given, or of another that began with the same variables.

        That other may have been of another number of ranks, and other passes may have made it. All ranks call it.

        Raises:
            RuntimeError: before `startup`.
            ValueError, TypeError: on all ranks, naming what one of them found missing, unknown, of another shape or
                dtype, or of another routine or choice; nothing has been modified then.
        """
        with self._turn("load"):
            main = self._ready("load")
            vars, numbers, steps = states.check(self, saved, main.check_numbers)
            states.write(self, vars)
            self._numbers, self.steps = numbers, steps
            self._main = Runners(ops.bind(self, op) for op in self.program.main)  # which know scalars as they were
            self._main.set(numbers)

    def copy_back(self) -> None:
        """Copy what startup has moved into buffers to the arrays that the caller has brought."""
        with self._turn("copy_back"):
            moved = [name for name, array in self._brought.items() if self._arrays[name] is not array]
            if moved:
                self.backend.cast([self._arrays[name] for name in moved], [self._brought[name] for name in moved])()

    def _ready(self, what: str) -> Runners:
        if self._main is None:
            raise RuntimeError(f"Bound.{what}: expected startup() before it, got none")
        if self._stepped_by:
            raise RuntimeError(f"Bound.{what}: expected what nothing else steps, got what a {self._stepped_by} does")
        return self._main

    def check_gradients(self, runners: Runners) -> None:
        """Raise if what the caller provides for gradients, in a mapping, cannot be written by some ops of a step."""
        if isinstance(self.gradients, Mapping):
            runners.check_gradients()

    def hand_over(self, stepper: str) -> None:
        """Let something else take the steps from here on."""
        self._stepped_by = stepper

    def _check_ranks(self) -> None:
        for op in (*self.program.startup, *self.program.main):
            comm, ranks = self.along(op), op.attrs.get("ranks")
            if ranks is not None and (comm is None or ranks != comm.size):
                axis = f" along {op.attrs['axis']!r}" if "axis" in op.attrs else ""
                got = f"one of {comm.size}" if comm is not None else "None"
                got += f", among the axes {', '.join(self.axes)}" if comm is None and self.axes else ""
                expected = f"expected a communicator of {ranks} ranks{axis}, as {op.type} needs"
                raise ValueError(f"bind: comm: {expected}, got {got}")

    def _check_roots(self, op: Op) -> None:
        """Raise if this rank is to send what it never changes, as it does with the program of another rank."""
        main = self.program.main
        for call in calls(op):
            if call.type != "broadcast" or call.attrs["root"] != self.along(op).rank:
                continue
            for cell in sorted(self.program.cells(call.writes)):
                if all(main[i].type in ("broadcast", BATCH) for i in self.program.users[cell][1]):
                    got = f"that of a rank which changes no {cell!r}, and broadcasts it"
                    raise ValueError(f"bind: program: expected that of rank {call.attrs['root']}, got {got}")

    def _check(self, where: str, name: str, array: Any) -> None:
        var, where = self.program.vars.get(name), f"{where}: arrays"
        if var is None or var.sparse or var.shape == UNKNOWN:
            raise ValueError(f"{where}: expected names of dense tensors of the program, got {name!r}")
        if name in self.program.whole_of:
            whole = self.program.whole_of[name]
            raise ValueError(f"{where}: expected no array for {name!r}, which is a block of {whole!r}, got one")
        where = f"{where}: {name!r}"
        described = self.backend.describe(array, where)
        if described.shape != var.shape:
            raise ValueError(f"{where}: expected shape {var.shape}, got {described.shape}")
        if described.dtype != var.dtype:
            raise TypeError(f"{where}: expected {var.dtype}, got {described.dtype}")
        check_dense(where, described)
        if self.program.writers[name] and not described.writable:
            raise ValueError(f"{where}: expected a writable array, got a read-only one")


def _allocated(
    graph: Graph, there: Mapping[str, Any], backend: Backend
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Arrays for what the caller has not brought and startup does not make, and which are copies, by what of."""
    brought = {name for op in graph.startup if op.type == "initialize" for name in op.writes}
    arrays: dict[str, Any] = {}
    copies: dict[str, list[str]] = {}  # by what they start from
    for var in _wanted(graph, there):
        first = var.initial
        if first is None and (var.persistable or var.name in brought):
            raise ValueError(f"bind: arrays: {var.name!r}: expected an array, since it starts from none, got none")
        if isinstance(first, str):
            copies.setdefault(first, []).append(var.name)
        arrays[var.name] = backend.full(var.shape, var.dtype, 0.0 if first is None or isinstance(first, str) else first)
    _copy_first(graph, {**there, **arrays}, copies, backend)
    return arrays, copies


def _copy_first(
    graph: Graph, arrays: Mapping[str, Any], copies: Mapping[str, list[str]], backend: Backend
) -> None:
    """Let arrays be copies of what they start from, which may be copies themselves; ``copies`` are by that."""
    own = {name for names in copies.values() for name in names}
    waiting = [name for name in copies if name not in own]  # first those that are no copies of others
    for source in waiting:
        for name in copies[source]:
            part, start = graph.vars[name].part, arrays[source]
            if part is not None:
                start = backend.part(start, part.first, math.prod(graph.vars[name].shape))
            backend.cast([start], [arrays[name]])()
            waiting += [name] if name in copies else []


def _wanted(graph: Graph, there: Mapping[str, Any]) -> Iterator[Var]:
    """The dense variables that are not there, and that no startup op makes room for."""
    elsewhere = set(graph.whole_of)
    for op in graph.startup:
        if op.type == "coalesce_tensor" and not op.attrs.get("copy_data"):
            elsewhere.update(op.writes)
    for var in graph.vars.values():
        if not (var.sparse or var.shape == UNKNOWN or var.name in there or var.name in elsewhere):
            yield var


def bind(
    program: Program, arrays: Mapping[str, Any], *, backend: str = "cpu", comm: Any = None,
    gradients: Gradients = None, stream: Any = 0,
) -> Bound:
    """Put arrays and ranks behind the names of a program.

    Args:
        arrays: by name of a variable, its array: all that are persistable and have no initial value, and any others.
            They are changed in place, until startup ops move them into buffers; what is changed shares no memory with
            another one.
        backend: ``"cpu"`` for NumPy's arrays and `refopt.cpu`, ``"gpu"`` for device arrays and `refopt.gpu`.
        comm: a communicator of `refopt.comm`, or a `refopt.comm.Mesh`, if the program has collectives. All ranks bind
            at a time: they make sure that they are about to make the same calls. One of GPUs works on the same stream.
        gradients: what ops of type ``backward`` write into the gradients' arrays: a mapping from the gradient's name to
            an array (or a pair of row numbers and rows, for a sparse one), or a function of the name and the number of
            the step, from 0. ``None`` if they are in the arrays already, which the caller then writes before each step.
        stream: what device arrays are worked on in; the legacy default stream if not given.

    Raises:
        ValueError, TypeError: naming the argument.
        refopt.comm.CommError: if the ranks' programs have other collectives.
    """
    check_arguments("bind", program, comm, gradients)
    arrays = mapping("bind: arrays", arrays)
    refuse_shared("bind", program, arrays, backend_of(backend, arrays, stream))
    return Bound(program, arrays, backend, comm, gradients, stream)


def check_arguments(where: str, program: Any, comm: Any, gradients: Any) -> None:
    """Raise if what is to be bound is no program, the communicator none, or the gradients give none."""
    expect_program(where, program)
    known = isinstance(comm, Mesh) or all(hasattr(comm, name) for name in ("rank", "size", "agree", "prepared"))
    if comm is not None and not known:
        raise TypeError(f"{where}: comm: expected a communicator of refopt.comm, a Mesh or None, got {shown(comm)}")
    if not (gradients is None or callable(gradients) or isinstance(gradients, Mapping)):
        raise TypeError(f"{where}: gradients: expected a mapping, a function or None, got {shown(gradients)}")


def run(
    program: Program, arrays: Mapping[str, Any], *, backend: str = "cpu", comm: Any = None,
    gradients: Gradients = None, stream: Any = 0, steps: int = 1, **numbers: Any,
) -> Bound:
    """Bind a program, run its startup and some steps, and leave the outcome in the arrays that were given.

    Args are those of `bind`, the number of ``steps``, at least 0, and those of `Bound.step`.

    Raises:
        ValueError, TypeError: naming the argument; before anything is done, for those of `Bound.step` before a step.
        refopt.comm.CommError: if the ranks' programs have other collectives.
    """
    count = whole("run: steps", steps, 0)
    bound = bind(program, arrays, backend=backend, comm=comm, gradients=gradients, stream=stream)
    bound.startup()
    for _ in range(count):
        bound.step(**numbers)
    bound.copy_back()
    return bound
