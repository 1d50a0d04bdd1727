"""Test data: dtype configurations, sizes for a device, and seeded data of realistic scale."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from refopt import cpu
from refopt.catalog import Hyper, Routine, Slot, Spec
from refopt.catalog.workloads import Workload
from refopt.checks.dtypes import arithmetic, lacking, numpy_dtype
from refopt.cpu.codes import codes_of
from refopt.cpu.newton_schulz import takes_gram
from refopt.cpu.remainder import split


class Dtypes(NamedTuple):
    """A dtype configuration: the dtype of parameters and gradients, and the additional arrays.

    With ``master`` or the dtype of a ``remainder`` every state has the arithmetic type; ``chance`` is stochastic
    rounding, and with ``coded`` states have 8 bits.
    """

    param: str
    master: bool = False
    remainder: str = ""
    chance: bool = False
    coded: bool = False


DTYPES = {
    "fp32": Dtypes("float32"),
    "fp64": Dtypes("float64"),
    "fp16": Dtypes("float16"),
    "bf16": Dtypes("bfloat16"),
    "fp16-amp": Dtypes("float16", master=True),
    "bf16-amp": Dtypes("bfloat16", master=True),
    "bf16+16": Dtypes("bfloat16", remainder="uint16"),
    "bf16+8": Dtypes("bfloat16", remainder="int8"),
    "bf16-sr": Dtypes("bfloat16", chance=True),
    "fp32-8": Dtypes("float32", chance=True, coded=True),
    "bf16+8-8": Dtypes("bfloat16", remainder="int8", chance=True, coded=True),
}

# Numbers large enough to change bits in every dtype, which defaults may not be.
HYPERS = {
    "lr": 0.05, "mu": 0.9, "beta1": 0.8, "beta2": 0.9, "rho": 0.95, "decay_base": 0.96**0.004, "l2_decay": 0.01,
    "coeff": 0.1, "weight_decay": 0.1, "lars_coeff": 0.001, "lars_weight_decay": 0.0005, "lr_ratio": 0.5,
    "epsilon": 1e-4, "rescale_grad": 1 / 192,
}
# The ranges from which scalars per tensor are drawn, and lengths: RAdam rectifies if its length is above 5.
SCALARS = 0.3, 0.95
LENGTHS = {"rho": (3.0, 12.0)}
FEW = 6  # matrices
GRAM, RESTARTS = {"fp32": "float16", "fp64": "float64"}, (2,)  # dtypes, and restarts of three iterations
# Their launches besides those of the standard iterations: if no matrix has Gram matrices, if all have, if some have.
MORE = {frozenset(): 0, frozenset([False]): 0, frozenset([True]): 3, frozenset([True, False]): 7}
NO_DECAY = ("*.bias", "*bn?.*", "*downsample.1.*", "*LayerNorm.*", "*.ln_?.*", "*norm.*")  # biases and norms


class Case(NamedTuple):
    """Data for a routine: the arrays of each slot, the gradients and the hyperparameters of each step."""

    routine: Routine
    workload: Workload
    dtype: str
    slots: dict[str, list[np.ndarray] | None]
    grads: list[list[np.ndarray]]
    hypers: list[dict[str, Any]]
    gram: str = ""  # the dtype of iterations by Gram matrices

    @property
    def choices(self) -> dict[str, Any]:
        """The choices that are not the routine's defaults."""
        if self.routine.matrix_arguments:
            kinds = ("convolution" if len(tensor.shape) > 2 else "matrix" for tensor in self.workload.tensors)
            compute = self.gram or ("float64" if DTYPES[self.dtype].param == "float64" else "bfloat16")
            restarts = RESTARTS if self.gram else None
            return {"blocks": [cpu.Blocks(of=kind) for kind in kinds], "compute": compute, "restarts": restarts}
        return {"rounding": "stochastic"} if DTYPES[self.dtype].chance else {}

    @property
    def specs(self) -> list[Spec]:
        present = [(slot, self.slots[slot.name] is not None) for slot in self.routine.slots]
        dtypes = tuple(slot_dtype(slot, self.dtype) if there else None for slot, there in present)
        return [Spec(tensor.elements, dtypes) for tensor in self.workload.tensors]

    def by_gram(self) -> "Case":
        """The case with three iterations by Gram matrices, in the dtype of `gram_of`; these have every operation."""
        hypers = [numbers | {"iterations": 3} for numbers in self.hypers]
        return self._replace(hypers=hypers, gram=gram_of(self.routine, self.dtype))

    def launches(self, form: str, which: slice = slice(None)) -> int:
        """Launches of a step of some tensors."""
        count = self.routine.launches(self.specs[which], form, self.hypers[-1].get("iterations", 0))
        tensors = [x for x in self.workload.tensors[which] if x.elements and self.gram]
        taken = {takes_gram(x.shape[0], x.elements // x.shape[0], RESTARTS) for x in tensors}
        return count + MORE[frozenset(taken)]


def gram_of(routine: Routine, dtype: str) -> str:
    """The dtype in which ``refopt verify`` iterates by Gram matrices, in addition to the usual iteration; or none."""
    return GRAM.get(dtype, "") if routine.matrix_arguments else ""


def unavailable(dtype: str, routine: Routine | None = None) -> str:
    """Why this installation lacks a dtype configuration, in general or of a routine; empty if it has it."""
    param = DTYPES[dtype].param
    iterates = routine is not None and routine.matrix_arguments and param != "float64"  # Muon does, in bf16
    return lacking("bfloat16" if iterates else param)


def offered(routine: Routine, dtype: str) -> bool:
    """Whether a routine supports a dtype configuration."""
    asked = DTYPES[dtype]
    able = "rounding" in routine.choices or not asked.chance
    return able and (bool(routine.states) or not asked.coded)


def extents(
    workload: Workload, device: str, cap: int | None = None, norms: bool = True
) -> tuple[Workload, str]:
    """The workload at a size for the device, and a description of how it was scaled down; empty if it was not.

    On the executor some tensors stay larger than a row of the kernels (256 elements), a tile (1024) and a chunk of any
    dtype (16,384 at 16 bits); without ``norms``, where a chunk is a tile, larger than a row and a tile.
    """
    if cap is not None:
        scaled, how = workload.scaled(cap), f"tensors of up to {cap:,}"
    elif device == "gpu":
        if workload.elements < 500_000_000:
            return workload, ""
        scaled, how = workload.scaled(2_000_000), "tensors of up to 2,000,000"
    else:
        order = sorted(range(len(workload)), key=lambda i: -workload.tensors[i].elements)
        limit = dict.fromkeys(order, 16) | dict.fromkeys(order[:7], 300) | dict.fromkeys(order[:3], 1500)
        limit[order[0]] = 17_500 if norms else 1500
        by_limit = {n: workload.scaled(n).tensors for n in set(limit.values())}
        scaled = replace(workload, tensors=tuple(by_limit[limit[i]][i] for i in range(len(workload))))
        how = "at most 17,500 (1 tensor; 1,500 without norms), 1,500 (2), 300 (4), 16 (others)"
    return scaled, how if scaled.elements < workload.elements else ""


def matrices(workload: Workload, device: str, cap: int | None = None) -> Workload:
    """The matrices of a workload at a size for the device: only a few, since NumPy takes seconds for their products."""
    every = workload.matrices()
    if cap is not None:
        return extents(every, device, cap)[0]
    apart = -(-len(every) // FEW)
    return replace(every, tensors=every.tensors[::-apart][::-1]).scaled(60_000 if device == "gpu" else 300)


def slot_dtype(slot: Slot, dtype: str) -> str:
    """The dtype of a slot: the parameter's, but the arithmetic type for states beside masters or remainders."""
    asked = DTYPES[dtype]
    if slot.name == "master_params" and asked.remainder:
        return asked.remainder
    if asked.coded and slot.like_param and slot.name not in ("params", "grads", "master_params"):
        return "uint8"
    exact = slot.scalar or slot.by_row or ((asked.master or asked.remainder) and slot.name not in ("params", "grads"))
    return np.dtype(arithmetic(asked.param)).name if exact else asked.param


def make_case(routine: Routine, workload: Workload, dtype: str, steps: int, seed: int = 0) -> Case:
    """Seeded data of realistic scale: new gradients every step, no state elements of zero, some tensors all zero.

    Every step changes every element by more than its rounding, so that a kernel that does nothing is detected.
    """
    real = arithmetic(DTYPES[dtype].param)
    values = np.random.default_rng(seed)
    exact = [_param(values, real, i, tensor) for i, tensor in enumerate(workload.tensors)]
    slots = {
        slot.name: _params(slot, dtype, exact) if slot.name in ("params", "master_params")
        else _states(values, real, slot, workload, numpy_dtype(slot_dtype(slot, dtype)))
        for slot in routine.slots if slot.name != "grads"
    }
    kind = numpy_dtype(DTYPES[dtype].param)
    tensors = list(enumerate(workload.tensors))
    grads = [[_grad(values, real, i, t).astype(kind) for i, t in tensors] for _ in range(steps)]
    slots["grads"] = grads[0]
    return Case(routine, workload, dtype, slots, grads, [hypers(routine, workload, k) for k in range(steps)])


def _params(slot: Slot, dtype: str, exact: list[np.ndarray]) -> list[np.ndarray] | None:
    """Parameters as they are stored, or their masters or remainders, if any."""
    if DTYPES[dtype].remainder:
        return [split(x, DTYPES[dtype].remainder)[slot.name == "master_params"] for x in exact]
    present = slot.name == "params" or DTYPES[dtype].master
    kind = numpy_dtype(slot_dtype(slot, dtype))
    return [x.astype(kind) for x in exact] if present else None


def _states(
    values: np.random.Generator, real: type, slot: Slot, workload: Workload, kind: Any
) -> list[np.ndarray] | None:
    if slot.optional:
        return None
    if slot.scalar:
        low, high = LENGTHS.get(slot.name, SCALARS)
        return [values.uniform(low, high, 1).astype(kind) for _ in workload.tensors]
    exact = [_state(values, real, slot, t) for t in workload.tensors]
    return [codes_of(slot).coded(x) if kind == np.uint8 else x.astype(kind) for x in exact]


def hypers(routine: Routine, workload: Workload, step: int) -> dict[str, Any]:
    """The hyperparameters of a step: a value per tensor where the routine accepts that, and a falling lr."""
    names = [tensor.name for tensor in workload.tensors]

    def value(hyper: Hyper) -> Any:
        if hyper.whole and hyper.per_tensor:
            return [step + i for i in range(len(names))]
        number = routine.trial.get(hyper.name, hyper.usual(HYPERS))
        if hyper.name == "lr":
            number *= 0.75**step
        if not hyper.per_tensor:
            return number
        if hyper.name in ("lars_weight_decay", "l2_decay", "coeff", "weight_decay"):
            return cpu.weight_decays(names, number, NO_DECAY, match="glob")
        return [hyper.times(number, 1 + i % 7 / 8) for i in range(len(names))]

    return {hyper.name: value(hyper) for hyper in routine.hypers}


def _scale(tensor: Any) -> float:
    """The size of a parameter's elements: by fan-in for matrices, around 1 for norms, small for biases."""
    if len(tensor.shape) > 1:
        return float(1 / np.sqrt(max(1, tensor.elements // tensor.shape[0])))
    return 0.01 if tensor.name.endswith("bias") else 1.0


def _param(values: np.random.Generator, real: type, i: int, tensor: Any) -> np.ndarray:
    x = values.standard_normal(tensor.shape, real)
    if i % 37 in (5, 17):
        return np.zeros_like(x)
    return 1 + x / 8 if _scale(tensor) == 1 else x * real(_scale(tensor))


def _grad(values: np.random.Generator, real: type, i: int, tensor: Any) -> np.ndarray:
    x = values.standard_normal(tensor.shape, real) / 2
    return np.zeros_like(x) if i % 37 in (11, 17) else x


def _state(values: np.random.Generator, real: type, slot: Slot, tensor: Any) -> np.ndarray:
    """Values farther from zero than the parameter's rounding; averages of squares are positive."""
    x = values.standard_normal((tensor.shape[0], 1) if slot.by_row else tensor.shape, real)
    x = real(_scale(tensor) / 16) * (x + np.copysign(real(1), x))
    return x if slot.signed else x * x
