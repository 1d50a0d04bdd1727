"""Launches by lanes: decides whether a kernel can run so, and runs it in batches of whole blocks."""

from __future__ import annotations

import importlib.util
import math
import threading
import types
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..base.state import current
from ..base.threads import WARP_SIZE
from ..base.watchdog import Stopped, watch
from ..compiled import Compiled
from ..compiled.kinds import Kind, of_value, widened
from ..machine.launch import PATIENCE
from ..machine.occupancy import resident_blocks
from ..memory.shared import STATIC_SHARED_LIMIT
from .addresses import Addresses
from .forms import Form, Program
from .places import Global, Lanes
from .text import Writer
from .typed import Refused, typed

MOST_RESIDENT = 65_536  # threads of a cooperative launch
THREADS = importlib.util.find_spec("greenlet") is not None  # whether launches by threads are possible
LEAST = 128 if THREADS else 1  # threads of a launch; fewer are faster by threads
WORTH = 1024 if THREADS else 0  # threads that run in the time that it takes to generate a form
MOST = 32_768  # threads of a batch, so that its arrays fit into the cache
Index = tuple[int, int, int]


class _Made(NamedTuple):
    """A kernel for kinds of arguments: the function for lanes, or why there is none."""

    function: Any
    why: str
    calls: Any
    cooperative: bool = False


_made: WeakKeyDictionary[Any, dict[tuple, _Made]] = WeakKeyDictionary()
_launched: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def _kinds(args: tuple) -> tuple[Kind, ...]:
    return tuple(widened(of_value(arg)) for arg in args)


def made(function: types.FunctionType, known: Compiled, args: tuple) -> _Made:
    """The form of a kernel for arguments; ``known`` is the version that runs by threads."""
    kinds = _kinds(args)
    table = _made.setdefault(function, {})
    if kinds not in table or table[kinds].calls is not known.calls:
        table[kinds] = _make(function, kinds, known)
    return table[kinds]


def _is_worth_it(function: types.FunctionType, args: tuple, threads: int) -> bool:
    """Whether a form already exists, or enough threads have been launched that generating one pays off."""
    if _kinds(args) in _made.get(function, ()):
        return True
    _launched[function] = _launched.get(function, 0) + threads
    return _launched[function] >= WORTH


def _make(function: types.FunctionType, kinds: tuple[Kind, ...], known: Compiled) -> _Made:
    program = Program()
    forms: dict[tuple, Form | None] = {}

    def callee(function: types.FunctionType, kinds: tuple[Kind, ...]) -> tuple[Form, Kind]:
        key = function, kinds
        if key not in forms:
            forms[key] = None
            form = Form(program.name("f"))
            typer, tree, form.result = typed(function, kinds, callee)
            Writer(program, form, typer, tree)
            forms[key] = form
        found = forms[key]
        if found is None:
            raise Refused(f"{function.__name__} calls itself")
        return found, found.result

    try:
        if known.untyped:
            raise Refused(known.untyped)
        form, _ = callee(function, kinds)
        exec(compile("\n".join(program.lines), f"<lanes of {function.__name__}>", "exec"), program.names)
    except Refused as reason:
        return _Made(None, str(reason), known.calls)
    except Exception as error:  # it may still run by threads
        return _Made(None, f"{type(error).__name__} while its form was generated: {error}", known.calls)
    return _Made(program.names[form.name], "", known.calls, form.cooperative)


class Run:
    """A launch by lanes. It replaces a `Launch` for the functions that kernels and their twins call."""

    def __init__(self, name: str, grid: Index, block: Index, dynamic_bytes: int, cooperative: bool) -> None:
        self.name, self.grid, self.block, self.dynamic_bytes = name, grid, block, dynamic_bytes
        self.threads, self.cooperative = math.prod(block), cooperative
        self.addresses = Addresses()
        self.load, self.store, self.save = self.addresses.load, self.addresses.store, self.addresses.save
        self.steps = self.exited = self.atomics = 0
        self.stopped = False
        self.active: Any = None  # the lanes that are calling the twin of an instruction
        self.turns, self.ordered = 0, set[int]()

    def pause(self, changed: bool) -> None:
        """Count a turn: by threads, after `PATIENCE` of these another thread runs."""
        self.turns += 1
        self.steps += 1

    def in_order(self, data: np.ndarray) -> None:
        """Refuse an operation on memory whose result depends on the order of the threads, unless the lanes have it.

        They do if none has waited for some others only, and if this is the memory's only such operation in a batch.
        """
        while isinstance(data.base, np.ndarray):
            data = data.base
        if self.turns >= PATIENCE or id(data) in self.ordered:
            raise Refused("the order of atomics on floats, or of compare-and-swap")
        self.ordered.add(id(data))

    def commit_copies(self) -> None:
        """`vectors.commit_copies`."""
        self._copies("asynchronous copies").append([])

    def wait_for_copies(self, pending: int) -> None:
        """`vectors.wait_for_copies`."""
        groups = self._copies("a wait for copies")
        done = max(len(groups) - 1 - pending, 0)
        for placed, index, values in (copy for group in groups[:done] for copy in group):
            placed.assign(index, values)
        del groups[:done]

    def _copies(self, what: str) -> list[list]:
        if self.active.count < self.active.batch.count:
            raise Refused(f"{what} of some lanes")
        return self.active.batch.copies

    def check(self, batch: Batch) -> None:
        """Refuse too much shared memory, or too many blocks at once, which by threads is an error."""
        nbytes, limit = batch.static_bytes + self.dynamic_bytes, current.claim.has.shared_of_block
        if batch.static_bytes > STATIC_SHARED_LIMIT or nbytes > limit:
            raise Refused("too much shared memory")
        if self.cooperative and batch.blocks > resident_blocks(self.block, nbytes):
            raise Refused("more blocks than can wait for each other")

    def __call__(self, function: Any, args: tuple) -> None:
        """Run all blocks.

        Raises:
            Exception: one that the kernel raises, or `Refused`; memory is restored.
        """
        seen = tuple(self._seen(arg) for arg in args)
        current.launch = current.lanes = self
        current.runner = threading.get_ident()
        try:
            watch.begin(self)
            with np.errstate(all="ignore"):
                for batch in self._batches():
                    self.turns, self.ordered = 0, set()
                    function(Lanes(batch), *seen)
                    self.exited += batch.count
        except BaseException:
            self.addresses.restore()
            raise
        finally:
            self.addresses.release()
            watch.end()
            current.reset()

    def _seen(self, arg: Any) -> Any:
        """An argument as the generated code takes it."""
        if isinstance(arg, tuple):
            parts = [self._seen(part) for part in arg]
            return tuple(parts) if type(arg) is tuple else type(arg)(*parts)
        return Global(arg, self) if isinstance(arg, np.ndarray) else arg

    def _batches(self) -> Iterator[Batch]:
        blocks, most = math.prod(self.grid), max(1, MOST // self.threads)
        if self.cooperative:
            most = max(1, MOST_RESIDENT // self.threads)
            if blocks > most:
                raise Refused("more blocks than can wait for each other")
        before = None
        for first in range(0, blocks, most):
            before = Batch(self, first, min(most, blocks - first), before)
            yield before


class Batch:
    """Some consecutive blocks of a launch."""

    def __init__(self, run: Run, first: int, blocks: int, before: Batch | None) -> None:
        self.run, self.blocks, self.count = run, blocks, blocks * run.threads
        self.shared: dict[int, Any] = {}
        self.dynamic: Any = None
        self.static_bytes = 0
        self.copies: list[list] = [[]]  # groups of asynchronous copies in flight, the last of which is open
        self.values: dict[str, Any] = {}
        rank = np.arange(run.threads)
        if before is not None and before.blocks == blocks:
            self.values |= before.values
        else:
            self._places("threadIdx", rank, run.block, lambda value: np.tile(value, blocks))
            self.values |= {"lane": np.tile(rank % WARP_SIZE, blocks), "thread": np.arange(self.count)}
            self.values["block"] = np.repeat(np.arange(blocks), run.threads) if blocks > 1 else 0
            for name, extents in (("blockDim", run.block), ("gridDim", run.grid)):
                self.values |= {f"{name}.{axis}": extent for axis, extent in zip("xyz", extents, strict=True)}
        numbers = np.arange(first, first + blocks) if blocks > 1 else first
        self._places("blockIdx", numbers, run.grid, lambda value: np.repeat(value, run.threads))

    def _places(self, name: str, number: Any, extents: Index, spread: Any) -> None:
        """The coordinates of linear numbers; a coordinate that all share is not an array."""
        x, y, z = extents
        for axis, value, extent in (("x", number % x, x), ("y", number // x % y, y), ("z", number // (x * y), z)):
            one = 0 if extent == 1 else value
            self.values[f"{name}.{axis}"] = spread(one) if isinstance(one, np.ndarray) else one


class How(NamedTuple):
    """How a launch runs.

    Attributes:
        by: "lanes" or "threads".
        why: why it does not run by lanes; empty if it does.
    """

    by: str
    why: str = ""

    def __str__(self) -> str:
        return f"by {self.by}{self.why and ': '}{self.why}"


def decide(launch: Any, known: Compiled, args: tuple) -> tuple[How, _Made | None]:
    """How a configured kernel runs with arguments, as far as that is known before the launch, and its form."""
    threads = math.prod(launch.grid) * math.prod(launch.block)
    if current.observer is not None:
        return How("threads", "it is observed"), None
    if threads < LEAST or current.inside:
        return How("threads", f"{threads} threads are fewer than {LEAST}"), None
    form = made(launch.kernel.function, known, args)
    return How("threads" if form.why else "lanes", form.why), form


def attempt(launch: Any, known: Compiled, args: tuple) -> bool:
    """Run a configured kernel by lanes if possible and worthwhile; return whether it ran. If not, nothing changed."""
    kernel, threads = launch.kernel, math.prod(launch.grid) * math.prod(launch.block)
    if current.observer is not None or threads < LEAST or not _is_worth_it(kernel.function, args, threads):
        return False
    how, form = decide(launch, known, args)
    if how.why or form is None:
        return False
    try:
        Run(kernel.__name__, launch.grid, launch.block, launch.dynamic_bytes, form.cooperative)(form.function, args)
    except (Refused, Stopped, AttributeError, TypeError) as reason:  # the next launch would fail too
        _made[kernel.function][_kinds(args)] = _Made(None, str(reason) or "it does not end", known.calls)
        return False
    except Exception:  # raised again by threads, with its place and notes
        if not THREADS:
            raise
        return False
    return True
