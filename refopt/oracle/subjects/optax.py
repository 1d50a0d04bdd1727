"""Transformations of optax as what makes runs."""

import contextlib
import importlib
import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt.checks.arguments import kind_of
from refopt.oracle.cases import NUMBERS
from refopt.oracle.memory import Placed
from refopt.oracle.subject import Lacks
from refopt.oracle.subjects.arrays import Jax
from refopt.oracle.subjects.names import public_name
from refopt.oracle.subjects.optax_peers import PEERS
from refopt.oracle.subjects.run import LibraryRun

RATE = "learning_rate"


class OptaxOptimizer:
    """A ``GradientTransformation``, or a function of ``learning_rate`` that returns one.

    Attributes:
        accepts: what may be among the options: defaults by name.
        values: the numbers of a function, by optax's names.
    """

    dtypes = "float32", "float64"
    gated, in_place, recompiled = False, False, True
    peers = tuple(PEERS.values())

    def __init__(self, make: Any, options: Mapping[str, Any]) -> None:
        self.arrays, self.optax = Jax(), importlib.import_module("optax")
        self.options, self.accepts, self.values = dict(options), dict[str, Any](), dict[str, Any]()
        if hasattr(make, "init") and hasattr(make, "update"):
            self.transformation, self.name = make, kind_of(make)
        else:
            self.name = public_name(make, options)
            rate = float(NUMBERS["lr"])  # which makes nothing fp64, as a number of NumPy's would
            self.accepts = {name: x.default for name, x in inspect.signature(make).parameters.items()}
            given = {RATE: rate, **options} if RATE in self.accepts else dict(options)
            self.values = {**self.accepts, **given}
            try:
                self.transformation = make(**given)
            except Exception as error:  # whatever somebody's function raises
                what = f"expected a GradientTransformation, got {kind_of(error)}: {error}"
                raise TypeError(f"check: {self.name}: {what}") from error
        self.notes = ["XLA compiles each list anew: together and alone within the tolerance, not bit for bit"]

    def called(self, routine: str) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """What it calls the numbers of a routine, and which it has for itself."""
        return PEERS[routine].numbers, PEERS[routine].choices

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> "OptaxRun":
        if apart:
            raise Lacks("a transformation has no groups")
        return OptaxRun(self, params, saved)


class OptaxRun(LibraryRun):
    """A run of a transformation. A checkpoint is the leaves of its state."""

    def __init__(self, of: OptaxOptimizer, params: Sequence[Placed], saved: bytes | None) -> None:
        self.jax, self.tree = of.arrays.jax, of.arrays.jax.tree_util
        self.wide = any(p.whole.dtype == np.float64 for p in params)
        with self._width():
            super().__init__(of, params)
            self.state = of.transformation.init(self._params)
            if saved is not None:
                leaves, structure = self.tree.tree_flatten(self.state)
                loaded = [self._loaded(x, leaf) for x, leaf in zip(pickle.loads(saved), leaves, strict=True)]
                self.state = self.tree.tree_unflatten(structure, loaded)

    def _width(self) -> Any:
        return self.jax.enable_x64(True) if self.wide else contextlib.nullcontext()

    def step(self, grads: Sequence[Placed | None], found_inf: float | None = None, refill: bool = False) -> None:
        if refill:
            raise Lacks("its gradients are new arrays")
        if any(g is None for g in grads):
            raise Lacks("a tensor without a gradient")
        with self._width():
            updates, self.state = self.of.transformation.update(self._given(grads), self.state, self._params)
            self._params = self.of.optax.apply_updates(self._params, updates)

    def states(self) -> list[dict[str, np.ndarray]]:
        of: list[dict[str, np.ndarray]] = [{} for _ in self._params]
        for path, leaf in self.tree.tree_flatten_with_path(self.state)[0]:
            index = getattr(path[-1], "idx", None) if path else None
            if index is not None and index < len(of) and np.size(leaf) == self._params[index].size:
                of[index][self.tree.keystr(path[:-1])] = self._saved(leaf)
        return of

    def save(self) -> bytes:
        return pickle.dumps([self._saved(x) for x in self.tree.tree_leaves(self.state)])

    def _saved(self, leaf: Any) -> np.ndarray:
        return np.array(self.jax.random.key_data(leaf) if self._is_key(leaf) else leaf)

    def _loaded(self, x: np.ndarray, leaf: Any) -> Any:
        array = self.jax.numpy.asarray(x)
        return self.jax.random.wrap_key_data(array) if self._is_key(leaf) else array

    def _is_key(self, leaf: Any) -> bool:
        """Whether it is a key of a generator of random numbers, which NumPy has not."""
        dtypes = self.jax.dtypes
        return hasattr(leaf, "dtype") and dtypes.issubdtype(leaf.dtype, dtypes.prng_key)


def of_optax(subject: Any, options: Mapping[str, Any]) -> OptaxOptimizer | None:
    """The optimizer that a transformation, or a function of a learning rate, is; ``None`` for anything else."""
    if hasattr(subject, "init") and hasattr(subject, "update"):
        return OptaxOptimizer(subject, {})
    function: Callable[..., Any] = subject
    if isinstance(subject, partial):
        function, options = subject.func, {**subject.keywords, **options}
    try:
        taken = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    if RATE not in taken or {"params", "grads"} & {*taken}:
        return None
    return OptaxOptimizer(function, options)
