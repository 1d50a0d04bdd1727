"""A program bound to arrays and ranks: made once, run in every step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any

import numpy as np

from refopt.checks.arguments import mapped, shown, whole
from refopt.checks.arrays import check_dense
from refopt.comm.mesh import Mesh, communicators
from refopt.program import ops, states
from refopt.program.backends import Backend, backend_of
from refopt.program.exclusive import Exclusive
from refopt.program.graph import Graph
from refopt.program.memory import refuse_shared
from refopt.program.model import UNKNOWN, Op, Var
from refopt.program.ops.collectives import BATCH, calls, sequence
from refopt.program.ops.context import Context, Gradients
from refopt.program.ops.runner import Runners
from refopt.program.program import Program, expect_program


class Bound(Exclusive, Context):
    """A program that can be run. Made by `bind`.

    Concurrent calls are serialized, so that each step is atomic; with a communicator, calls must come from its thread.
    It cannot be copied: use ``copy``, ``deepcopy`` and ``pickle`` on the program.

    Attributes:
        arrays: by name of a variable, its current array. Startup ops move tensors into buffers: from then on the array
            is a view, and the caller's array is no longer updated; see `copy_back`. A device reads scalars that an
            update advances, such as powers of beta, when the op is bound, so replace them with `rebind`.
        steps: the number of steps taken.
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
        self._stepped_by = ""  # the class of an object that takes the steps instead
        self.backend.require_subnormals()
        allocated, self._copies = _allocated(program, self._arrays, self.backend)
        self._arrays.update(allocated)
        for name in started:  # arrays that already hold the initial values
            if isinstance(first := program.vars[name].initial, str):
                self._copies.setdefault(first, []).append(name)
        if self.comm is not None:
            self.comm.agree(sequence(program, self.backend.chunk), states.common(program))
        for axis, group in self.axes.items():
            group.agree(sequence(program, self.backend.chunk, axis))
        for op in program.main:
            self._check_roots(op)

    def startup(self) -> None:
        """Run the startup ops, and bind the ops of a step to the resulting arrays.

        Raises:
            RuntimeError: on the second call.
            ValueError: from an op whose arrays are not as it needs them.
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
            numbers: new hyperparameters, such as ``lr``, for all ops of routines that have them; later steps keep
                them.

        Raises:
            RuntimeError: before `startup`, or if a `placement.BoundSchedule` steps the program.
            TypeError, ValueError: naming the number, or the gradient in a mapping; then nothing has been done. The
                gradients of a function are made and checked one by one during the step.
        """
        with self._turn("step"):
            main = self._ready("step")
            main.check_numbers(numbers)
            self.check_gradients(main)
            self.backend.require_subnormals()
            self._numbers |= main.set(numbers)
            main.run()
            self.steps += 1

    def rebind(self, arrays: Mapping[str, Any]) -> None:
        """Replace some arrays by others of the same shapes and dtypes, between steps.

        As in `bind`, an array that ops change must not share memory with another one, whether new or already bound.

        Raises:
            ValueError, TypeError: naming the variable, or from an op that needs its arrays at their addresses, such as
                the reduction of a group; then nothing has changed.
        """
        arrays = mapped("rebind: arrays", arrays)
        with self._turn("rebind"):
            self._ready("rebind")
            for name, array in arrays.items():
                self._check("rebind", name, array)
            refuse_shared("rebind", self.program, arrays, self.backend, self._arrays, self._brought)
            old = dict(self._arrays)  # all of them, since binding an op that cuts arrays adds the blocks
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
        """A copy of a variable's array in NumPy; one that is cut is joined from its blocks.

        Raises:
            ValueError: there is no dense variable of that name, or other ranks have blocks of it.
        """
        if isinstance(name, str) and name not in self._arrays and name in self.program.vars:
            return states.whole_of(self, name)
        return super().read(name)

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint, from which a run resumes as if uninterrupted. All ranks call it, and all get all of it.

        With `refopt.program.passes.local_steps` each rank gets its own, with ``"rank"``, its number and that of ranks.

        Returns:
            NumPy arrays, each whole and under its name without passes, wherever its blocks or shards are: ``"params"``
            by name; ``"states"``, by parameter a dictionary of its update as `refopt.state` describes it, with one
            tensor; ``"others"``, such as the loss scale. Also ``"numbers"``, those passed to `step`; ``"steps"``, how
            many were taken; and ``"version"``.

        Raises:
            RuntimeError: before `startup`.
        """
        with self._turn("state_dict"):
            self._ready("state_dict")
            return states.saved(self, self._numbers)

    def load(self, saved: Mapping[str, Any]) -> None:
        """Resume from a `state_dict` of this program, or of another that started from the same variables.

        The other may have had another number of ranks, or come from other passes. All ranks call it.

        Raises:
            RuntimeError: before `startup`.
            ValueError, TypeError: on all ranks, naming what one of them found missing, unknown, with another shape or
                dtype, or for another routine or choice; then nothing has been modified.
        """
        with self._turn("load"):
            main = self._ready("load")
            vars, numbers, steps = states.check(self, saved, main.check_numbers)
            states.write(self, vars)
            self.steps = steps
            self._main = Runners(ops.bind(self, op) for op in self.program.main)  # the old ones have cached scalars
            self._numbers = self._main.set(numbers)

    def copy_back(self) -> None:
        """Copy what startup has moved into buffers back to the caller's arrays."""
        with self._turn("copy_back"):
            moved = [name for name, array in self._brought.items() if self._arrays[name] is not array]
            if moved:
                self.backend.cast([self._arrays[name] for name in moved], [self._brought[name] for name in moved])()

    def _ready(self, what: str) -> Runners:
        if self._main is None:
            raise RuntimeError(f"Bound.{what}: expected startup() before it, got none")
        if self._stepped_by:
            expected = "expected a program that nothing else steps"
            raise RuntimeError(f"Bound.{what}: {expected}, got one that a {self._stepped_by} steps")
        return self._main

    def check_gradients(self, runners: Runners) -> None:
        """Raise if a step cannot copy the gradients that the caller provides in a mapping."""
        if isinstance(self.gradients, Mapping):
            runners.check_gradients()

    def hand_over(self, stepper: str) -> None:
        """Let another object take the steps from now on."""
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
        """Raise if this rank would broadcast what it never changes: it then has another rank's program."""
        main = self.program.main
        for call in calls(op):
            if call.type != "broadcast" or call.attrs["root"] != self.along(op).rank:
                continue
            for cell in sorted(self.program.cells(call.writes)):
                if all(main[i].type in ("broadcast", BATCH) for i in self.program.users[cell][1]):
                    got = f"one for a rank that broadcasts {cell!r} and never changes it"
                    raise ValueError(f"bind: program: expected the program of rank {call.attrs['root']}, got {got}")

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
    """Arrays that neither the caller nor startup provides, and the copies among them, by their source."""
    brought = {name for op in graph.startup if op.type == "initialize" for name in op.writes}
    arrays: dict[str, Any] = {}
    copies: dict[str, list[str]] = {}  # by the variable that they start from
    for var in _wanted(graph, there):
        first = var.initial
        if first is None and (var.persistable or var.name in brought):
            raise ValueError(f"bind: arrays: {var.name!r}: expected an array, since it has no initial value, got none")
        if isinstance(first, str):
            copies.setdefault(first, []).append(var.name)
        arrays[var.name] = backend.full(var.shape, var.dtype, 0.0 if first is None or isinstance(first, str) else first)
    _copy_first(graph, {**there, **arrays}, copies, backend)
    return arrays, copies


def _copy_first(
    graph: Graph, arrays: Mapping[str, Any], copies: Mapping[str, list[str]], backend: Backend
) -> None:
    """Copy initial values into ``copies``, given by source; sources may be copies themselves."""
    own = {name for names in copies.values() for name in names}
    waiting = [name for name in copies if name not in own]  # first those that are not copies themselves
    for source in waiting:
        for name in copies[source]:
            part, start = graph.vars[name].part, arrays[source]
            if part is not None:
                start = backend.part(start, part.first, math.prod(graph.vars[name].shape))
            backend.cast([start], [arrays[name]])()
            waiting += [name] if name in copies else []


def _wanted(graph: Graph, there: Mapping[str, Any]) -> Iterator[Var]:
    """The dense variables without an array for which no startup op allocates one."""
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
    """Bind a program to arrays and ranks.

    Args:
        arrays: by name of a variable, its array: required if it is persistable and has no initial value, else optional.
            They are changed in place, until startup ops move them into buffers; an array that is changed must not share
            memory with another.
        backend: ``"cpu"`` for NumPy arrays and `refopt.cpu`, ``"gpu"`` for device arrays and `refopt.gpu`.
        comm: a communicator of `refopt.comm`, or a `refopt.comm.Mesh`, if the program has collectives. All ranks bind
            at the same time, and check that they will make the same calls, and update each parameter alike. A GPU
            communicator must use the same stream.
        gradients: what ``backward`` ops write into the gradients' arrays: a mapping from the gradient's name to an
            array (for a sparse one, a pair of row numbers and rows), or a function of the name and the number of the
            step, from 0. ``None`` if the caller writes the arrays before each step.
        stream: the stream for work on device arrays; by default the legacy default stream.

    Raises:
        ValueError, TypeError: naming the argument.
        refopt.comm.CommError: the ranks' programs differ in their collectives, or in how they update a parameter.
    """
    check_arguments("bind", program, comm, gradients)
    arrays = mapped("bind: arrays", arrays)
    refuse_shared("bind", program, arrays, backend_of(backend, arrays, stream))
    return Bound(program, arrays, backend, comm, gradients, stream)


def check_arguments(where: str, program: Any, comm: Any, gradients: Any) -> None:
    """Raise if the program, the communicator or the gradients are not what is expected."""
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
    """Bind a program, run its startup and some steps, and leave the results in the given arrays.

    Arguments are those of `bind`, the number of ``steps``, at least 0, and those of `Bound.step`.

    Raises:
        ValueError, TypeError: naming the argument; before anything is done, or a step for those of `Bound.step`.
        refopt.comm.CommError: as for `bind`.
    """
    count = whole("run: steps", steps, 0)
    bound = bind(program, arrays, backend=backend, comm=comm, gradients=gradients, stream=stream)
    bound.startup()
    for _ in range(count):
        bound.step(**numbers)
    bound.copy_back()
    return bound
