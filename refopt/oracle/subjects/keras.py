"""Keras 3 optimizers as `Subject`, on the current backend of Keras."""

import contextlib
import copy
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks.arguments import kind_of
from refopt.oracle.cases import NUMBERS
from refopt.oracle.memory import Placed, into
from refopt.oracle.subject import Lacks, Wrong
from refopt.oracle.subjects.arrays import arrays_of
from refopt.oracle.subjects.keras_peers import OTHER, PEERS
from refopt.oracle.subjects.names import makes, names_of, public_name, refusing
from refopt.oracle.subjects.shared import LibraryRun

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

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> "KerasRun":
        if apart:
            raise Lacks("a Keras optimizer has no groups")
        return KerasRun(self, params, saved)


class KerasRun(LibraryRun):
    """A run of a Keras optimizer. A checkpoint is what ``save_own_variables`` stores."""

    optimizer: Any = None

    def __init__(self, of: Any, params: Sequence[Placed], saved: Any) -> None:
        self.wide = any(p.whole.dtype == np.float64 for p in params)
        with of.types(self.wide):
            super().__init__(of, params)
            self._params = [self._variable(x, i) for i, x in enumerate(self._params)]
            self.optimizer = of.built()
            self.optimizer.build(self._params)
            if saved is not None:
                self.optimizer.load_own_variables(pickle.loads(saved) if isinstance(saved, bytes) else saved)

    def _placed(self, placed: Placed) -> tuple[Any, Any]:
        """The whole array and the view in the backend, if it supports views."""
        whole, part = into(self.of.arrays, placed)
        alone = placed.whole.size == np.prod(placed.shape) and placed.view().flags.c_contiguous
        kept = self.of.in_place or self.optimizer is not None  # then these are gradients, not variables
        if not alone and (whole is None or not kept):
            raise Lacks(f"arrays of Keras on {self.of.backend} have no layout that a caller can choose")
        return whole if kept else None, part

    def _variable(self, part: Any, i: int) -> Any:
        """A variable; on PyTorch it shares memory."""
        if self.of.backend == "torch":
            part = self.of.arrays.torch.nn.Parameter(part)
            return self.of.keras.Variable(part, dtype=str(part.dtype).removeprefix("torch."), name=f"params_{i}")
        return self.of.keras.Variable(part, dtype=part.dtype.name, name=f"params_{i}")

    def step(self, grads: Sequence[Placed | None], found_inf: float | None = None, refill: bool = False) -> None:
        with self.of.types(self.wide), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Gradients do not exist")
            self.optimizer.apply(self._given(grads, refill))

    def put(self, params: Sequence[np.ndarray]) -> None:
        with self.of.types(self.wide):
            for p, x in zip(self._params, params, strict=True):
                p.assign(x)

    def params(self) -> list[np.ndarray]:
        return [self._copy(p.value) for p in self._params]

    def states(self) -> list[dict[str, np.ndarray]]:
        of: list[dict[str, np.ndarray]] = [{} for _ in self._params]
        for one in {id(x): x for x in (self.optimizer, inner(self.optimizer))}.values():
            for name, held in vars(one).items():
                if name in ("_variables", "_trainable_variables") or not self._is_state(held):
                    continue
                for entry, p, x in zip(of, self._params, held, strict=True):
                    if x is not None and len(x.shape) >= min(len(p.shape), 1):  # others are placeholders
                        entry[name.lstrip("_")] = self._copy(x.value)
        return of

    def _is_state(self, held: Any) -> bool:
        """Whether something is a list with a variable or ``None`` for each tensor."""
        kinds = self.of.keras.Variable, type(None)
        return isinstance(held, list) and len(held) == len(self._params) and all(isinstance(x, kinds) for x in held)

    def slow(self, group: int | None = None) -> None:
        with self.of.types(self.wide):
            try:
                self.optimizer.learning_rate = float(self.optimizer.learning_rate) / 2
            except (TypeError, AttributeError) as error:
                raise Lacks("its learning rate cannot be set") from error

    def state_dict(self) -> dict[str, np.ndarray]:
        store: dict[str, np.ndarray] = {}
        self.optimizer.save_own_variables(store)
        return store

    def save(self) -> bytes:
        return pickle.dumps({name: np.array(x) for name, x in self.state_dict().items()})


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


def inner(optimizer: Any) -> Any:
    """The optimizer that another one wraps, such as `LossScaleOptimizer`; or itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)
