"""Cases made from sizes and dtypes, with seeded normal values, or from numbers that are written out."""

import math
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import ROUTINES, Hyper, Routine, Slot
from refopt.checks.dtypes import REMAINDERS, arithmetic, numpy_dtype
from refopt.cpu import Blocks
from refopt.cpu.remainder import split
from refopt.oracle.exact.cases import Case, has

SMALL = [3, 1, 0, 7, 260]
# Dtypes of p, g, states and master that together cover the differences between kernels.
SIGNATURES = [
    ("float32", "float32", "float32"),
    ("float64", "float32", "float64"),
    ("float16", "float16", "float32", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
]
# Numbers large enough that each affects the result; no two are equal.
NUMBERS = {
    "lr": 0.55, "mu": 0.9, "l2_decay": 0.3, "beta1": 0.7, "beta2": 0.8, "epsilon": 0.11, "rescale_grad": 0.37,
    "seed": 5, "coeff": 0.23, "weight_decay": 0.17, "lr_ratio": 0.6, "rho": 0.85,
}


def step_of(routine: Routine, **changed: Any) -> dict[str, Any]:
    """Hyperparameters of a step, none of which has its default."""

    def number(hyper: Hyper) -> float:
        usual = hyper.usual(NUMBERS)
        return hyper.other if usual == hyper.default else usual

    return {hyper.name: number(hyper) for hyper in routine.hypers} | changed


def make(
    routine: Routine, sizes: list[int], dtypes: tuple[str, ...] = ("float32",) * 3, seed: int = 0,
    steps: list[dict[str, Any]] | None = None, optional: tuple[str, ...] = (), **choices: Any,
) -> Case:
    """A case of flat tensors. ``dtypes`` are those of p, g, the states and, if there is one, the master.

    ``optional`` names the optional states to include.
    """
    rng = np.random.default_rng([seed, *sizes])
    real = "float64" if dtypes[0] == "float64" else "float32"
    slots: dict[str, Any] = {}
    for slot in routine.slots:
        if slot.name == "master_params":
            slots |= _masters(slots["params"], real, dtypes[3:])
        elif slot.scalar:
            low, high = (3.0, 12.0) if slot.name == "rho" else (0.2, 0.95)
            slots[slot.name] = [rng.uniform(low, high, 1).astype(real) for _ in sizes]
        elif not slot.optional or slot.name in optional:
            dtype = numpy_dtype(dtypes[{"params": 0, "grads": 1}.get(slot.name, 2)])
            size = 0.1 if slot.name == "mean_grad" else 1  # its square is less than the mean of squares
            values = [size * rng.normal(size=n) for n in sizes]
            slots[slot.name] = [(x if slot.signed else abs(x)).astype(dtype) for x in values]
    every = {name: values[0] for name, values in routine.choices.items()} | choices
    return Case(routine, slots, [step_of(routine)] if steps is None else steps, every)


class Numbers(NamedTuple):
    """The elements of an array: ``repeated`` numbers, element i times 1 + i / 1000, except ``at`` some indices."""

    repeated: list[float]
    at: tuple[tuple[int, float], ...] = ()

    def array(self, size: int, dtype: str) -> np.ndarray:
        """Flat, each element rounded once."""
        with np.errstate(all="ignore"):
            values = np.resize(np.array(self.repeated, float), size) * (1 + np.arange(size) / 1000)
            for i, x in self.at:
                values[i] = x
            values = {"uint16": values % 2**16, "int8": values % 2**8 - 2**7}.get(dtype, values)
            return values.astype(numpy_dtype(dtype))


class Tensor(NamedTuple):
    """A tensor of a case. ``dtypes`` are those of p, g, states and master; ``order`` is that of its axes in memory.

    ``numbers`` has the elements by slot; slots that it lacks are absent, such as a gradient or an optional state.
    """

    dtypes: tuple[str, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...]
    numbers: dict[str, Numbers]

    def array(self, slot: Slot) -> np.ndarray | None:
        """The array of a slot; a scalar has the shape () if the tensor has."""
        if slot.name not in self.numbers:
            return None
        if slot.scalar:
            return self.numbers[slot.name].array(1, np.dtype(arithmetic(self.dtypes[0])).name).reshape(self.shape and 1)
        if slot.by_row:
            shape, dtype = Blocks().row_shape(self.shape), np.dtype(arithmetic(self.dtypes[0])).name
            return self.numbers[slot.name].array(math.prod(shape), dtype).reshape(shape)
        dtype = self.dtypes[{"params": 0, "grads": 1, "master_params": 3}.get(slot.name, 2)]
        return dense(self.numbers[slot.name].array(math.prod(self.shape), dtype), self.shape, self.order)


def listed(name: str, tensors: list[Tensor], steps: list[dict[str, Any]], choices: dict[str, Any]) -> Case:
    """A case in plain numbers. Steps may have a number as ``grad_factor`` and as ``found_inf``."""
    slots: dict[str, Any] = {}
    for slot in ROUTINES[name].slots:
        arrays = [tensor.array(slot) for tensor in tensors]
        slots[slot.name] = None if slot.optional and all(x is None for x in arrays) else arrays
    gates = [{key: np.full(1, step[key], np.float32) for key in ("grad_factor", "found_inf") if key in step}
             for step in steps]
    return Case(ROUTINES[name], slots, [a | b for a, b in zip(steps, gates, strict=True)], choices)


def dense(values: np.ndarray, shape: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Flat values as an array of this shape, with its axes in this order in memory, outermost first."""
    stored = values.reshape([shape[axis] for axis in order])
    return stored.transpose([order.index(axis) for axis in range(len(shape))])


def _masters(params: list[np.ndarray], real: str, dtype: tuple[str, ...]) -> dict[str, Any]:
    """Masters from which parameters are rounded, or remainders and their parameters."""
    if dtype and dtype[0] in REMAINDERS:
        wide = [x.astype(np.float32) * np.float32(1 + 2**-9) for x in params]
        halves = map(list, zip(*(split(x, dtype[0]) for x in wide), strict=True)) if wide else ([], [])
        return dict(zip(("params", "master_params"), halves, strict=True))
    return {"master_params": [x.astype(real) * numpy_dtype(real).type(1 + 2**-13) for x in params]} if dtype else {}


def scaled(case: Case, factor: float, *slots: str) -> Case:
    """The case with every array of some slots multiplied."""
    return case.replace(**{slot: [x * x.dtype.type(factor) for x in case.slots[slot] or ()] for slot in slots})


def storages() -> list[tuple[str, ...]]:
    """Dtypes of p, g, states and master other than fp32 throughout."""
    return _there(
        ("float64", "float64", "float64"),
        ("float64", "float32", "float64"),
        ("float16", "float16", "float16"),
        ("float16", "float16", "float32", "float32"),
        ("float32", "float16", "float32"),
        ("bfloat16", "bfloat16", "float32"),
        ("bfloat16", "bfloat16", "float32", "float32"),
        ("float16", "bfloat16", "float32", "float32"),
    )


def stochastic() -> list[tuple[str, ...]]:
    """Dtypes with some to which a step can round stochastically."""
    return _there(
        ("bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", "bfloat16", "float32", "float32"),
        ("bfloat16", "float32", "bfloat16", "uint16"),
    )


def remainders() -> list[tuple[str, ...]]:
    """Dtypes with a remainder in place of a master."""
    return _there(("bfloat16", "bfloat16", "float32", "uint16"), ("bfloat16", "float32", "bfloat16", "uint16"),
                  ("bfloat16", "bfloat16", "float32", "int8"))


def _there(*kinds: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Those of some dtypes that NumPy has here."""
    return [kind for kind in kinds if "bfloat16" not in kind or has("bfloat16")]
