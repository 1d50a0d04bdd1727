"""A run of a Keras optimizer: its variables before and after steps."""

import pickle
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from refopt.oracle.memory import Placed, into
from refopt.oracle.subject import Lacks
from refopt.oracle.subjects.run import LibraryRun


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
        if refill:
            raise Lacks("its gradients are new arrays in each step")
        with self.of.types(self.wide), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Gradients do not exist")
            self.optimizer.apply(self._given(grads))

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


def inner(optimizer: Any) -> Any:
    """The optimizer that another one wraps, such as `LossScaleOptimizer`; or itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)
