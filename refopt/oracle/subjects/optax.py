"""optax transformations as `Optimizer`."""

import contextlib
import inspect
import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt.checks.arguments import kind_of
from refopt.checks.optional import library
from refopt.oracle.cases import NUMBERS
from refopt.oracle.memory import Placed
from refopt.oracle.subject import Lacks, Wrong
from refopt.oracle.subjects.arrays import Jax
from refopt.oracle.subjects.names import public_name, refusing
from refopt.oracle.subjects.optax_peers import PEERS
from refopt.oracle.subjects.run import LibraryRun

RATE, EXPECTED = "learning_rate", "a GradientTransformation"


class OptaxOptimizer:
    """A ``GradientTransformation``, or a function of ``learning_rate`` that returns one.

    Attributes:
        accepts: the possible options: defaults by name.
        values: the numbers of a function, by optax's names.
    """

    dtypes = "float32", "float64"
    gated, in_place, recompiled = False, False, True
    peers = tuple(PEERS.values())

    def __init__(self, make: Any, options: Mapping[str, Any], name: str = "") -> None:
        self.arrays, self.optax = Jax(), library("optax")
        self.make, self.options, self.name = make, dict(options), name or public_name(make, options)
        self.accepts, self.values = dict[str, Any](), dict[str, Any]()
        self.notes = ["XLA compiles each list separately: together and alone within the tolerance, not bit for bit"]
        if is_one(make):
            self.transformation, self.name = make, kind_of(make)
            return
        parameters = inspect.signature(make).parameters.values()
        self.accepts = {x.name: x.default for x in parameters}
        unknown = sorted(self.options.keys() - self.accepts)
        if unknown and not any(x.kind is x.VAR_KEYWORD for x in parameters):
            expected = ", ".join(sorted(self.accepts))
            raise TypeError(f"check: {self.name}: expected options of {expected}, got {unknown[0]}")
        self.values = {**self.accepts, **self.usual(), **self.options}
        with refusing(self.name, EXPECTED):
            self.transformation = self.made(self.usual())

    def usual(self) -> dict[str, Any]:
        """Default numbers, as Python floats: a NumPy rate would make everything fp64."""
        return {RATE: float(NUMBERS["lr"])} if RATE in self.accepts else {}

    def made(self, numbers: Mapping[str, Any]) -> Any:
        """The transformation with some numbers, as far as the options do not set them."""
        transformation = self.make(**{name: x for name, x in numbers.items() if name in self.accepts} | self.options)
        if not is_one(transformation):
            raise Wrong(f"expected {EXPECTED}, got {kind_of(transformation)}")
        return transformation

    def called(self, routine: str) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """Its names for the numbers of a routine, and those that it fixes."""
        return PEERS[routine].numbers, PEERS[routine].choices

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> "OptaxRun":
        if apart:
            raise Lacks("a transformation has no groups")
        return OptaxRun(self, params, saved)


class OptaxRun(LibraryRun):
    """A run of a transformation. A checkpoint is the leaves of its state."""

    def __init__(self, of: OptaxOptimizer, params: Sequence[Any], saved: bytes | None = None, numbers: Any = None):
        self.jax, self.tree = of.arrays.jax, of.arrays.jax.tree_util
        self.wide = any(getattr(p, "whole", p).dtype == np.float64 for p in params)
        with self.width():
            super().__init__(of, params)
            self.transformation = of.transformation if numbers is None else of.made(numbers)
            try:
                self.state = self.transformation.init(self._params)
            except (TypeError, ValueError) as error:  # raised when nothing is joined
                if params:
                    raise
                raise Lacks("an empty list of parameters") from error
            if saved is not None:
                leaves, structure = self.tree.tree_flatten(self.state)
                loaded = [self._loaded(x, leaf) for x, leaf in zip(pickle.loads(saved), leaves, strict=True)]
                self.state = self.tree.tree_unflatten(structure, loaded)

    def width(self) -> Any:
        """A context with fp64, if the parameters are fp64."""
        return self.jax.enable_x64(True) if self.wide else contextlib.nullcontext()

    def step(self, grads: Sequence[Any], found_inf: float | None = None, refill: bool = False) -> None:
        if refill:
            raise Lacks("its gradients are new arrays in each step")
        if any(g is None for g in grads):
            raise Lacks("a tensor without a gradient")
        with self.width():
            updates, self.state = self.transformation.update(self._given(grads), self.state, self._params)
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
        """Whether it is a key of a random generator, a dtype that NumPy lacks."""
        dtypes = self.jax.dtypes
        return hasattr(leaf, "dtype") and dtypes.issubdtype(leaf.dtype, dtypes.prng_key)


def is_one(x: Any) -> bool:
    """Whether something is a transformation."""
    return hasattr(x, "init") and hasattr(x, "update")


def unpacked(subject: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any], list[str]]:
    """A function, its options and those of its partial, and the arguments that it takes, if known."""
    try:
        if isinstance(subject, partial):
            bound = inspect.signature(subject.func).bind_partial(*subject.args, **subject.keywords).arguments
            subject, options = subject.func, bound | dict(options)
        taken = list(inspect.signature(subject).parameters)
    except (TypeError, ValueError):
        taken = []
    return subject, dict(options), [] if {"params", "grads"} & {*taken} else taken


def of_optax(subject: Any, options: Mapping[str, Any]) -> OptaxOptimizer | None:
    """The optimizer of a transformation or a function of a learning rate; ``None`` for anything else."""
    if is_one(subject):
        return OptaxOptimizer(subject, {})
    function, options, taken = unpacked(subject, options)
    return OptaxOptimizer(function, options) if RATE in taken else None
