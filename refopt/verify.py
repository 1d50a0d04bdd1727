"""The comparison behind ``refopt verify``: CPU reference against kernel, on the tensors of a real model.

`rows` runs one routine in one dtype configuration through its forms and gives a `Row` for each: whether every
bit agrees after every step, and launches and bytes, counted on the executor, against the catalogue.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from refopt import cpu, gpu, simt, ulp
from refopt.catalog import ROUTINES, Hyper, Routine, Slot, Spec
from refopt.conformance.cases import arguments, dtype_of
from refopt.dtypes import arithmetic
from refopt.workloads import Workload


class Dtypes(NamedTuple):
    """A dtype configuration: what parameters and gradients are, and whether masters and state are fp32."""

    param: str
    master: bool = False


DTYPES = {
    "fp32": Dtypes("float32"),
    "fp64": Dtypes("float64"),
    "fp16": Dtypes("float16"),
    "bf16": Dtypes("bfloat16"),
    "fp16-amp": Dtypes("float16", master=True),
    "bf16-amp": Dtypes("bfloat16", master=True),
}

# Large enough that each changes bits in every dtype; the others have the catalogue's defaults.
HYPERS = {
    "lr": 0.05, "mu": 0.9, "beta1": 0.8, "beta2": 0.9, "l2_decay": 0.01, "coeff": 0.1, "weight_decay": 0.1,
    "lr_ratio": 0.5, "epsilon": 1e-4, "rescale_grad": 1 / 192,
}  # fmt: skip
LRS = {"lars_momentum": 10.0, "sgd": 10.0, "adadelta": 10.0}  # where little of it is left
NO_DECAY = ("*.bias", "*bn?.*", "*downsample.1.*", "*LayerNorm.*", "*.ln_?.*", "*norm.*")  # biases and norms
SHOWN = 4  # mismatches kept of a row


class Mismatch(NamedTuple):
    """One element that differs. ``expected`` and ``got`` are a bit pattern and its value, as text."""

    step: int
    slot: str
    tensor: int
    name: str
    element: int
    expected: tuple[str, str]
    got: tuple[str, str]
    ulps: int


class Row(NamedTuple):
    """One form of a routine in one dtype configuration. Counts are of the last step.

    Ops are those of the optimizer: one per tensor, or one per dtype signature once merged. ``counted`` says
    whether launches and bytes were counted, which the executor can, or are what the plan says.
    """

    routine: str
    dtype: str
    form: str
    tensors: int
    elements: int
    ops_before: int
    ops_after: int
    launches_before: int
    launches_after: int
    bytes: int
    counted: bool
    max_ulps: int
    differing: int
    mismatches: tuple[Mismatch, ...]
    problems: tuple[str, ...]
    milliseconds: float | None = None
    speedup: float | None = None

    @property
    def ok(self) -> bool:
        return not self.differing and not self.problems


States = list[dict[str, list[np.ndarray]]]  # for each step, the arrays of each slot


class Case(NamedTuple):
    """What is computed: the arrays of each slot, the gradients and the hyperparameters of each step."""

    routine: Routine
    workload: Workload
    dtype: str
    slots: dict[str, list[np.ndarray] | None]
    grads: list[list[np.ndarray]]
    hypers: list[dict[str, Any]]

    @property
    def specs(self) -> list[Spec]:
        present = [(slot, self.slots[slot.name] is not None) for slot in self.routine.slots]
        dtypes = tuple(slot_dtype(slot, self.dtype) if there else None for slot, there in present)
        return [Spec(tensor.elements, dtypes) for tensor in self.workload.tensors]


def unavailable(dtype: str) -> str:
    """Why a dtype configuration cannot be used here; empty if it can."""
    if DTYPES[dtype].param == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401
        except ImportError:
            return "ml_dtypes is not installed"
    return ""


def extents(workload: Workload, device: str, cap: int | None = None) -> tuple[Workload, str]:
    """The workload at a size for the device, and in words how it was scaled down; empty if it was not.

    On the executor some tensors stay larger than a tile (1024) and than a chunk (8192) of the kernels.
    """
    if cap is not None:
        scaled, how = workload.scaled(cap), f"tensors of up to {cap:,}"
    elif device == "gpu":
        if workload.elements < 500_000_000:
            return workload, ""
        scaled, how = workload.scaled(2_000_000), "tensors of up to 2,000,000"
    else:
        order = sorted(range(len(workload)), key=lambda i: -workload.tensors[i].elements)
        limit = dict.fromkeys(order, 64) | dict.fromkeys(order[:3], 1500) | dict.fromkeys(order[:1], 9000)
        by_limit = {n: workload.scaled(n).tensors for n in set(limit.values())}
        scaled = replace(workload, tensors=tuple(by_limit[limit[i]][i] for i in range(len(workload))))
        how = "at most 9,000 (1 tensor), 1,500 (2), 64 (others)"
    return scaled, how if scaled.elements < workload.elements else ""


def slot_dtype(slot: Slot, dtype: str) -> str:
    """The dtype of a slot: the parameter's, but with masters every state is in the arithmetic type."""
    param, master = DTYPES[dtype]
    exact = slot.scalar or (master and slot.name not in ("params", "grads"))
    return np.dtype(arithmetic(param)).name if exact else param


def make_case(routine: Routine, workload: Workload, dtype: str, steps: int, seed: int = 0) -> Case:
    """Seeded data of realistic scale: fresh gradients every step, no state at zero, some tensors all zero.

    Every step moves every element by more than its rounding, so a kernel that does nothing is found out.
    """
    real = arithmetic(DTYPES[dtype].param)
    values = np.random.default_rng(seed)
    slots: dict[str, list[np.ndarray] | None] = {}
    exact = [_param(values, real, i, tensor) for i, tensor in enumerate(workload.tensors)]
    for slot in routine.slots:
        kind = dtype_of(slot_dtype(slot, dtype))
        if slot.name in ("params", "master_params"):
            present = slot.name == "params" or DTYPES[dtype].master
            slots[slot.name] = [x.astype(kind) for x in exact] if present else None
        elif slot.optional:
            slots[slot.name] = None
        elif slot.scalar:
            slots[slot.name] = [values.uniform(0.3, 0.95, 1).astype(kind) for _ in workload.tensors]
        elif slot.name != "grads":
            slots[slot.name] = [_state(values, real, slot, t).astype(kind) for t in workload.tensors]
    kind = dtype_of(DTYPES[dtype].param)
    tensors = list(enumerate(workload.tensors))
    grads = [[_grad(values, real, i, t).astype(kind) for i, t in tensors] for _ in range(steps)]
    slots["grads"] = grads[0]
    return Case(routine, workload, dtype, slots, grads, [hypers(routine, workload, k) for k in range(steps)])


def hypers(routine: Routine, workload: Workload, step: int) -> dict[str, Any]:
    """The hyperparameters of a step: a value per tensor wherever the routine takes one, lr falling."""
    names = [tensor.name for tensor in workload.tensors]

    def value(hyper: Hyper) -> Any:
        number = HYPERS.get(hyper.name, hyper.default)
        assert number is not None, f"{routine.name}: {hyper.name} has no default and no value in HYPERS"
        if hyper.name == "lr":
            number = LRS.get(routine.name, number) * 0.75**step
        if not hyper.per_tensor:
            return number
        if hyper.name in ("lars_weight_decay", "l2_decay", "coeff", "weight_decay"):
            return cpu.weight_decays(names, number, NO_DECAY, match="glob")
        return [number * (1 + i % 7 / 8) for i in range(len(names))]

    return {hyper.name: value(hyper) for hyper in routine.hypers}


def reference(case: Case) -> States:
    """Every slot after each step, by the CPU routine."""
    slots = {name: arrays and [x.copy() for x in arrays] for name, arrays in case.slots.items()}
    after = []
    for grads, numbers in zip(case.grads, case.hypers, strict=True):
        slots["grads"] = grads
        positional, named = arguments(case.routine, slots)
        getattr(cpu, case.routine.merged_name)(*positional, **named, **numbers)
        after.append({slot.name: [x.copy() for x in slots[slot.name] or ()] if slot.written else grads
                      for slot in case.routine.slots if slots[slot.name]})  # fmt: skip
    return after


def rows(
    routine: Routine,
    workload: Workload,
    dtype: str,
    forms: Sequence[str],
    machine: Any,
    steps: int = 2,
    report: Callable[[str], None] = lambda stage: None,
) -> Iterator[Row]:
    """Verify the forms of a routine in one dtype configuration. ``report`` is told of each stage."""
    report(f"{dtype} reference")
    case = make_case(routine, workload, dtype, steps)
    expected = reference(case)
    idle = _idle(case, expected)
    before, alone = unmerged(routine), None
    for form in forms:
        report(f"{dtype} {form}")
        row, plan = _verify(case, expected, form, machine)
        if machine.name == "gpu":
            time = step_time(plan)
            if alone is None:
                alone = time if form == before else step_time(_plan(case, before, machine)[0])
            row = row._replace(milliseconds=time, speedup=alone / time if alone else None)
        yield row._replace(problems=(*idle, *row.problems))


def all_rows(
    routine: Routine,
    workload: Workload,
    dtypes: Sequence[str],
    forms: Sequence[str],
    machine: Any,
    steps: int = 2,
    report: Callable[[str], None] = lambda stage: None,
) -> Iterator[Row]:
    """`rows` of each dtype configuration. The executor takes as many at a time as there are processors."""
    parallel = machine.name == "executor" and hasattr(os, "sched_getaffinity")  # where fork is safe, too
    workers = min(len(os.sched_getaffinity(0)), len(dtypes)) if parallel else 1
    if workers == 1:
        for dtype in dtypes:
            yield from rows(routine, workload, dtype, forms, machine, steps, report)
        return
    report(f"{', '.join(dtypes)}, {workers} at a time")
    with ProcessPoolExecutor(workers, get_context("fork")) as pool:
        tasks = [pool.submit(_rows_here, routine.name, workload, dtype, forms, steps) for dtype in dtypes]
        for task in tasks:
            yield from task.result()


def _rows_here(routine: str, workload: Workload, dtype: str, forms: Sequence[str], steps: int) -> list[Row]:
    with gpu.use("executor") as machine:
        return list(rows(ROUTINES[routine], workload, dtype, forms, machine, steps))


def unmerged(routine: Routine) -> str:
    """The form with launches for each tensor, which the others are measured against."""
    return next(name for name, form in routine.forms.items() if not form.merged)


def _verify(case: Case, expected: States, form: str, machine: Any) -> tuple[Row, Any]:
    routine, specs = case.routine, case.specs
    before = unmerged(routine)
    plan, arrays = _plan(case, form, machine)
    mismatches: list[Mismatch] = []
    differing = most = 0
    log = None
    for step, (grads, numbers) in enumerate(zip(case.grads, case.hypers, strict=True)):
        if step:
            for array, grad in zip(arrays["grads"], grads, strict=True):
                array.copy_to_device(ulp.bits(grad))
        if machine.name == "executor" and step == len(case.grads) - 1:
            with simt.observe(count=True) as log:
                plan.step(**numbers)
        else:
            plan.step(**numbers)
        machine.synchronize()
        for slot, values in expected[step].items():
            for i, want in enumerate(values):
                got = arrays[slot][i].copy_to_host().view(want.dtype)
                where, ulps = compare(want, got)
                differing += len(where)
                most = max(most, int(ulps.max(initial=0)))
                for at, n in zip(where[: SHOWN - len(mismatches)], ulps, strict=False):
                    a, b = _text(want.reshape(-1)[at]), _text(got.reshape(-1)[at])
                    name = case.workload.tensors[i].name
                    mismatches.append(Mismatch(step + 1, slot, i, name, int(at), a, b, int(n)))
    launches, traffic = plan.launches, plan.bytes
    if log is not None:
        launches = len(log.launches)
        tensors = [x for name, values in arrays.items() if name not in routine.scalars for x in values]
        traffic = sum(log.bytes_read(x) + log.bytes_written(x) for x in tensors)
    signatures = routine.launches(specs, routine.merged_form) // routine.forms[routine.merged_form].launches
    return Row(
        routine=routine.name,
        dtype=case.dtype,
        form=form,
        tensors=len(specs),
        elements=case.workload.elements,
        ops_before=len(specs),
        ops_after=signatures if routine.forms[form].merged else len(specs),
        launches_before=routine.launches(specs, before),
        launches_after=launches,
        bytes=traffic,
        counted=log is not None,
        max_ulps=most,
        differing=differing,
        mismatches=tuple(mismatches),
        problems=_counts(routine, specs, form, launches, traffic),
    ), plan


def compare(want: np.ndarray, got: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where two arrays differ (indices into the flat array), and by how many ULPs."""
    a, b = want.reshape(-1), got.reshape(-1)
    if np.array_equal(ulp.bits(a), ulp.bits(b)):
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    where = np.flatnonzero(~ulp.same_bits(a, b))
    return where, ulp.distance(a[where], b[where])


def _counts(routine: Routine, specs: list[Spec], form: str, launches: int, traffic: int) -> tuple[str, ...]:
    """What is counted against what the catalogue says."""
    counts = {
        "launches": (routine.launches(specs, form), launches),
        "bytes": (routine.bytes(specs, form), traffic),
    }
    return tuple(
        f"{what}: expected {expected:,} by the catalogue, got {got:,}"
        for what, (expected, got) in counts.items()
        if got != expected
    )


def _idle(case: Case, expected: States) -> list[str]:
    """Tensors with a gradient that the reference leaves alone: there, a kernel that does nothing would pass."""
    return [
        f"{slot.name}[{i}] {case.workload.tensors[i].name}: the reference changes nothing"
        for slot in case.routine.slots
        for i, before in enumerate((slot.written and case.slots[slot.name]) or ())
        if before.size and case.grads[0][i].any()
        and np.array_equal(ulp.bits(before), ulp.bits(expected[-1][slot.name][i]))
    ]


def _plan(case: Case, form: str, machine: Any) -> tuple[Any, dict[str, list]]:
    """The kernel's side: a plan, and the bit patterns of its arrays on the device.

    Copies are of bit patterns, because Numba copies no bf16.
    """
    bits = {n: [machine.to_device(ulp.bits(x)) for x in values] for n, values in case.slots.items() if values}
    kinds = {s.name: dtype_of(slot_dtype(s, case.dtype)) for s in case.routine.slots}
    slots = {name: [x.view(kinds[name]) for x in bits[name]] if name in bits else None for name in case.slots}
    positional, named = arguments(case.routine, slots)
    return gpu.plan(case.routine.name, *positional, **named, form=form, **case.hypers[0]), bits


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
    """Away from zero by more than a rounding of the parameter; averages of squares are positive."""
    x = values.standard_normal(tensor.shape, real)
    x = real(_scale(tensor) / 16) * (x + np.copysign(real(1), x))
    return x if slot.signed else x * x


def _text(x: Any) -> tuple[str, str]:
    pattern = ulp.bits(x)
    return f"0x{int(pattern):0{2 * pattern.itemsize}x}", str(x)


def step_time(plan: Any) -> float:
    """Median GPU time of a step, in milliseconds."""
    return _median_time(plan.step, warm_up=5, times=30)


def copy_bandwidth(nbytes: int = 2_000_000_000) -> float:
    """Bytes read and written a second by a device-to-device copy of that many bytes."""
    from cuda.bindings import driver
    from numba import cuda

    source, target = (cuda.device_array(nbytes, np.uint8) for _ in range(2))
    a, b = (array.__cuda_array_interface__["data"][0] for array in (source, target))
    return 2 * nbytes / _median_time(lambda: driver.cuMemcpyDtoDAsync(b, a, nbytes, 0), 3, 20) * 1000


def _median_time(run: Callable[[], Any], warm_up: int, times: int) -> float:
    from numba import cuda

    for _ in range(warm_up):
        run()
    events = [cuda.event() for _ in range(times + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    events[-1].synchronize()
    return median(cuda.event_elapsed_time(a, b) for a, b in pairwise(events))
