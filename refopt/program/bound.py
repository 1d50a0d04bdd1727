"""A program with arrays, and with ranks, behind its names: made once, run in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from refopt.checks.arguments import names as listed_names
from refopt.checks.arguments import shown, whole
from refopt.checks.arrays import check_dense
from refopt.program import kinds, runners
from refopt.program.backends import backend_of
from refopt.program.exclusive import Exclusive
from refopt.program.memory import refuse_shared
from refopt.program.ops import UNKNOWN, Var, mapping
from refopt.program.program import Program, expect_program
from refopt.program.update import Runner

Gradients = Mapping[str, Any] | Callable[[str, int], Any] | None


class Bound(Exclusive):
    """A program that can be run. Made by `bind`.

    Threads that call at the same time take turns, so that each step is made as a whole; with a communicator, calls are
    made in the thread that it is of. There are no copies: ``copy``, ``deepcopy`` and ``pickle`` are for the program.

    Attributes:
        program: the program.
        arrays: by name of a variable, the array that it is now. Startup ops move tensors into buffers: from then on the
            array is a view, and the one that the caller has brought is left behind; see `copy_back`. A device reads
            scalars that an update advances, such as powers of beta, when the op is bound, so for others use `rebind`.
        steps: steps taken.
    """

    def __init__(
        self, program: Program, arrays: Mapping[str, Any], backend: str, comm: Any, gradients: Gradients, stream: Any
    ) -> None:
        super().__init__(comm)
        program.check()
        for op in (*program.startup, *program.main):
            if kinds.routine_of(op) is None and runners.runner_of(op.type) is None:
                raise ValueError(f"bind: {op.type}: expected a type that can be run, one of refopt.program.kinds")
        self.program, self.backend, self.comm = program, backend_of(backend, arrays, stream), comm
        self._check_ranks()
        self._given = {name: self._checked("bind", name, array) for name, array in arrays.items()}
        self._arrays: dict[str, Any] = dict(self._given)
        self.arrays: Mapping[str, Any] = MappingProxyType(self._arrays)
        self.rows: dict[str, list[tuple[Any, Any]]] = {}  # of sparse variables, by name
        self.messages: list[tuple[str, Any, int]] = []  # under way, until a barrier of `placement` takes them
        self.steps = 0
        self._gradients = gradients
        self._numbers: dict[str, Any] = {}
        self._main: list[Runner] | None = None
        self._stepped_by = ""  # what takes the steps, if it is not this
        self._allocate()
        if comm is not None:
            comm.agree(runners.sequence(program, self.backend.chunk))

    def startup(self) -> None:
        """Run what is done once, and bind the ops of a step to the arrays as they then are.

        Raises:
            RuntimeError: the second time.
            ValueError: from an op that finds its arrays other than it needs them.
        """
        with self._turn("startup"):
            if self._main is not None:
                raise RuntimeError("Bound.startup: expected to be called once, got called again")
            for op in self.program.startup:
                runners.bind(self, op).run()
            self._main = [runners.bind(self, op) for op in self.program.main]

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
            self._check_numbers(numbers, main)
            self._check_gradients(main)
            self._set(numbers, main)
            for runner in main:
                runner.run()
            self.steps += 1

    def rebind(self, arrays: Mapping[str, Any]) -> None:
        """Put other arrays of the same shapes and dtypes in the place of some, between steps.

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
        new = {name: self._checked("rebind", name, array) for name, array in arrays.items()}
        refuse_shared("rebind", self.program, new, self.backend, self._arrays, self._given)
        old = dict(self._arrays)  # all of them, since ops that cut arrays put the blocks in as they are bound
        self._arrays.update(new)
        try:
            main = [runners.bind(self, op) for op in self.program.main]
        except BaseException:
            self._arrays.update(old)
            raise
        for runner in main:
            runner.set({name: x for name, x in self._numbers.items() if name in runner.numbers})
        self._main = main
        self._given.update(new)

    def copy_back(self) -> None:
        """Copy what startup has moved into buffers to the arrays that the caller has brought."""
        with self._turn("copy_back"):
            self._copy_back()

    def _copy_back(self) -> None:
        moved = [name for name, array in self._given.items() if self._arrays[name] is not array]
        if moved:
            self.backend.cast([self._arrays[name] for name in moved], [self._given[name] for name in moved])()

    def read(self, name: str) -> Any:
        """A host copy of a variable's array, a NumPy array."""
        if not isinstance(name, str) or name not in self._arrays:
            raise ValueError(f"Bound.read: expected a dense variable of the program, got {shown(name)}")
        return self.backend.read(self._arrays[name])

    def gradient(self, name: str) -> Any:
        """What the caller provides for a gradient in this step; ``None`` if it is in the gradient's array already."""
        self._expect_variable("gradient", name)
        if self._gradients is None:
            return None
        if callable(self._gradients):
            value = self._gradients(name, self.steps)
        elif name in self._gradients:
            value = self._gradients[name]
        else:
            raise ValueError(f"backward: gradients: expected an entry for {name!r}, got none")
        if value is None:
            raise TypeError(f"backward: gradients: {name!r}: expected an array, got None")
        return value

    def put(self, name: str, array: Any) -> None:
        """Let a variable be another array: what a startup op does."""
        self._expect_variable("put", name)
        described, where = self.backend.describe(array, "Bound.put"), f"Bound.put: {name!r}"
        var = self.program.vars[name]
        if described.dtype != var.dtype:
            raise TypeError(f"{where}: expected {var.dtype}, got {described.dtype}")
        if var.shape not in (UNKNOWN, described.shape):
            raise ValueError(f"{where}: expected shape {var.shape}, got {described.shape}")
        self._arrays[name] = array

    def drop(self, names: Iterable[str]) -> None:
        """Let arrays go that no op uses from here on: what a startup op does."""
        gone = listed_names("Bound.drop: names", names)
        for name in gone:
            self._expect_variable("drop", name)
        for name in gone:
            self._arrays.pop(name, None)
            self._given.pop(name, None)

    def _expect_variable(self, what: str, name: Any) -> None:
        if not isinstance(name, str) or name not in self.program.vars:
            raise ValueError(f"Bound.{what}: expected a variable of the program, got {shown(name)}")

    def _ready(self, what: str) -> list[Runner]:
        if self._main is None:
            raise RuntimeError(f"Bound.{what}: expected startup() before it, got none")
        if self._stepped_by:
            raise RuntimeError(f"Bound.{what}: expected what nothing else steps, got what a {self._stepped_by} does")
        return self._main

    def _check_gradients(self, main: Iterable[Runner]) -> None:
        if isinstance(self._gradients, Mapping):
            for runner in main:
                runner.check_gradients()

    def _check_numbers(self, numbers: dict[str, Any], main: list[Runner]) -> None:
        known = {name for runner in main for name in runner.numbers}
        for name, value in numbers.items():
            if name not in known:
                raise TypeError(f"step: {name}: expected one of {', '.join(sorted(known)) or 'none'}, got a number")
            for runner in main:
                if name in runner.numbers:
                    runner.check(name, value)

    def _set(self, numbers: dict[str, Any], main: list[Runner]) -> None:
        for runner in main if numbers else ():
            runner.set({name: value for name, value in numbers.items() if name in runner.numbers})
        self._numbers |= numbers

    def _check_ranks(self) -> None:
        size = 1 if self.comm is None else self.comm.size
        for op in (*self.program.startup, *self.program.main):
            ranks = op.attrs.get("ranks")
            if ranks not in (None, size) or (ranks is not None and self.comm is None):
                got = "None" if self.comm is None else f"one of {size}"
                raise ValueError(f"bind: comm: expected a communicator of {ranks} ranks, as {op.type} needs, got {got}")

    def _checked(self, where: str, name: str, array: Any) -> Any:
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
        return array

    def _allocate(self) -> None:
        """Arrays for what the caller has not brought and startup does not make."""
        coalesced = (op for op in self.program.startup if op.type == "coalesce_tensor")
        allocated = {name for op in coalesced if not op.attrs.get("copy_data") for name in op.writes}
        allocated |= {block for blocks in self.program.parts.values() for block in blocks}
        brought = {name for op in self.program.startup if op.type == "initialize" for name in op.writes}
        wanted = [var for var in self.program.vars.values() if not (var.sparse or var.shape == UNKNOWN)]
        copies: list[Var] = []
        for var in wanted:
            if var.name in self._arrays or var.name in allocated:
                continue
            if (var.persistable or var.name in brought) and var.initial is None:
                raise ValueError(f"bind: arrays: {var.name!r}: expected an array, since it starts from none, got none")
            if isinstance(var.initial, str):
                copies.append(var)
            value = 0.0 if var.initial is None or isinstance(var.initial, str) else var.initial
            self._arrays[var.name] = self.backend.full(var.shape, var.dtype, value)
        while copies:  # first those that are no copies of others
            later = {var.name for var in copies}
            for var in (var for var in copies if var.initial not in later):
                self.backend.cast([self._arrays[str(var.initial)]], [self._arrays[var.name]])()
            copies = [var for var in copies if var.initial in later]


def bind(
    program: Program, arrays: Mapping[str, Any], *, backend: str = "cpu", comm: Any = None,
    gradients: Gradients = None, stream: Any = 0,
) -> Bound:  # fmt: skip
    """Put arrays and ranks behind the names of a program.

    Args:
        program: the program.
        arrays: by name of a variable, its array: all that are persistable and have no initial value, and any others.
            They are changed in place, until startup ops move them into buffers; what is changed shares no memory with
            another one.
        backend: ``"cpu"`` for NumPy's arrays and `refopt.cpu`, ``"gpu"`` for device arrays and `refopt.gpu`.
        comm: a communicator of `refopt.comm`, if the program has collectives. All ranks bind at a time: they make sure
            that they are about to make the same calls. A communicator of GPUs works on the same stream.
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
    if comm is not None and not all(hasattr(comm, name) for name in ("rank", "size", "agree", "all_reduce")):
        raise TypeError(f"{where}: comm: expected a communicator of refopt.comm or None, got {shown(comm)}")
    if not (gradients is None or callable(gradients) or isinstance(gradients, Mapping)):
        raise TypeError(f"{where}: gradients: expected a mapping, a function or None, got {shown(gradients)}")


def run(
    program: Program, arrays: Mapping[str, Any], *, backend: str = "cpu", comm: Any = None,
    gradients: Gradients = None, stream: Any = 0, steps: int = 1, **numbers: Any,
) -> Bound:  # fmt: skip
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
