"""Keras 3 optimizers as `Subject`, on the current backend of Keras."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from refopt.catalog import Routine
from refopt.checks.arguments import kind_of
from refopt.oracle.cases import NUMBERS
from refopt.oracle.memory import Placed
from refopt.oracle.subject import Lacks, Wrong
from refopt.oracle.subjects.arrays import arrays_of
from refopt.oracle.subjects.keras_peers import OTHER, PEERS
from refopt.oracle.subjects.keras_run import KerasRun, inner
from refopt.oracle.subjects.names import makes, names_of, public_name, refusing

RATE = "learning_rate"
BACKENDS = "torch", "jax", "numpy"


class KerasOptimizer:
    """A class derived from ``keras.optimizers.Optimizer``, or a function of ``learning_rate``, or of nothing.

    Attributes:
        accepts: the possible options: defaults by name.
        values: its numbers, by Keras's names.
    """

    dtypes = "float32", "float64", "float16", "bfloat16"
    gated, recompiled = False, False
    peers = tuple(PEERS.values())

    def __init__(self, keras: Any, make: Callable[..., Any], options: Mapping[str, Any], name: str) -> None:
        self.keras, self.make, self.options, self.name = keras, make, dict(options), name
        self.backend = keras.backend.backend()
        if self.backend not in BACKENDS:
            raise ValueError(f"check: subject: expected a backend of {', '.join(BACKENDS)}, got {self.backend!r}")
        device = str(keras.Variable(0.0).value.device) if self.backend == "torch" else None
        self.arrays = arrays_of(self.backend, device)
        self.in_place = self.backend == "torch"  # other backends give variables a new array in each step
        self.accepts = names_of(make, first=1)
        first, second = self._first(), self._first()
        if {*map(id, first.variables)} & {*map(id, second.variables)}:
            raise TypeError(f"check: {name}: expected a new optimizer from each call, got one that shares variables")
        held = {key: x for one in (first, inner(first)) for key, x in vars(one).items() if not key.startswith("_")}
        self.values: dict[str, Any] = {**self.accepts, **self.options, **held}
        with contextlib.suppress(Exception):  # the caller may have a schedule, or several rates
            self.values[RATE] = float(first.learning_rate)
        self.notes = [f"Keras's backend is {self.backend}"]

    def _first(self) -> Any:
        """An optimizer whose learning rate makes steps visible, unless it has none or the caller set it."""
        rate = {RATE: float(NUMBERS["lr"])} if RATE in self.accepts and RATE not in self.options else {}
        asked = self.options
        for self.options in [{**rate, **asked}, asked] if rate else [asked]:
            try:
                return self.built()
            except Exception as error:  # whatever a user's function raises
                last = error
        with refusing(self.name):
            raise last

    def built(self) -> Any:
        """A new optimizer."""
        optimizer = self.make(**self.options)
        if not isinstance(optimizer, self.keras.optimizers.Optimizer):
            raise Wrong(f"expected an optimizer of Keras, got {kind_of(optimizer)}")
        return optimizer

    @contextlib.contextmanager
    def types(self, wide: bool) -> Iterator[None]:
        """A context with fp64 for numbers such as the learning rate, if parameters are fp64; and without autograd."""
        with contextlib.ExitStack() as stack:
            if wide:
                stack.callback(self.keras.config.set_floatx, self.keras.config.floatx())
                self.keras.config.set_floatx("float64")
            if wide and self.backend == "jax":
                stack.enter_context(self.arrays.jax.enable_x64(True))  # type: ignore[attr-defined]
            if self.backend == "torch":
                stack.enter_context(self.arrays.torch.no_grad())  # type: ignore[attr-defined]
            yield

    def called(self, routine: str) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """Its names for the numbers of a routine, and those that it fixes."""
        peer = PEERS.get(routine, OTHER)
        return peer.numbers, peer.choices

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> KerasRun:
        if apart:
            raise Lacks("a Keras optimizer has no groups")
        return KerasRun(self, params, saved)


def of_keras(
    keras: Any, row: Routine | None, subject: Any, options: Mapping[str, Any], device: str | None
) -> KerasOptimizer | None:
    """The optimizer of a class, an instance, a partial or a function; ``None`` for anything else."""
    if not hasattr(keras, "ops"):  # Keras 2
        return None
    base = keras.optimizers.Optimizer
    make: Callable[..., Any] = subject
    of_class = isinstance(subject, base) or (isinstance(make, type) and issubclass(make, base))
    if row is not None:
        if of_class:
            expected = f"expected a step, or an optimizer of PyTorch or optax, as {row.name}"
            raise TypeError(f"check: subject: {expected}, got one of Keras, for laws without a formula")
        return None
    if isinstance(subject, base):
        make = _again(subject)
    elif not of_class:
        rate = {RATE: float(NUMBERS["lr"])}
        if not isinstance(make, FunctionType | partial) or not makes(base, make, [], rate, options):
            return None
    if device is not None:
        raise ValueError(f"check: device: expected none except for torch, got {device!r} for Keras")
    name = _name(keras, subject if isinstance(subject, base) else make, options)
    return KerasOptimizer(keras, make, options, name)


def _again(optimizer: Any) -> Callable[..., Any]:
    """A function that makes optimizers with the configuration of another.

    Raises:
        TypeError: ``get_config`` leaves out a number that the optimizer has.
    """
    kind, known = type(optimizer), optimizer.get_config()
    for name, default in names_of(kind, first=1).items():
        if name not in (*known, RATE) and getattr(optimizer, name, default) != default:
            what = f"expected a get_config with {name!r}, which is {getattr(optimizer, name)!r}, got one without"
            raise TypeError(f"check: {kind.__qualname__}: {what}")
    return lambda **changed: kind.from_config({**copy.deepcopy(known), **changed})


def _name(keras: Any, subject: Any, options: Mapping[str, Any]) -> str:
    """The name as users write it: from the public module for a Keras class, or its subclass for a backend."""
    kind = subject if isinstance(subject, type) else type(subject)
    for one in kind.__mro__ if kind.__module__.startswith("keras.") else ():
        if getattr(keras.optimizers, one.__name__, None) is one:
            _, comma, given = public_name(one, options).partition(", ")
            return f"keras.optimizers.{one.__name__}{comma}{given}"
    return public_name(kind if isinstance(subject, keras.optimizers.Optimizer) else subject, options)
