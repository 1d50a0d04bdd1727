"""One routine against its reference: a row for each form and dtype configuration."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from refopt import cpu, gpu, simt
from refopt.catalog import Routine
from refopt.catalog.data import Case, gram_of, make_case, slot_dtype
from refopt.catalog.workloads import Workload
from refopt.checks.dtypes import REMAINDERS, numpy_dtype
from refopt.gpu import timing
from refopt.oracle import ulp
from refopt.oracle.exact.cases import arguments

SHOWN = 4  # mismatches kept for a row
COUNTED = 1_000_000  # elements of a workload up to which the executor counts: counted launches run by threads


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
    """One form of a routine in one dtype configuration. Counts are for the last step.

    Ops are those of the optimizer: one per tensor, or one per dtype signature if merged. ``counted`` says whether
    launches and bytes were counted, on the executor, or are taken from the plan.
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


Report = Callable[[str], None]
States = list[dict[str, list[np.ndarray]]]  # for each step, the arrays of each slot


def _silent(stage: str) -> None:
    """Report nothing."""


def reference(case: Case, report: Report = _silent) -> States:
    """Every slot after each step, by the CPU routine."""
    slots = {name: arrays and [x.copy() for x in arrays] for name, arrays in case.slots.items()}
    after = []
    for step, (grads, numbers) in enumerate(zip(case.grads, case.hypers, strict=True), 1):
        report(f"reference, step {step}")
        slots["grads"] = grads
        positional, named = arguments(case.routine, slots)
        getattr(cpu, case.routine.merged_name)(*positional, **named, **case.choices, **numbers)
        after.append({slot.name: [x.copy() for x in slots[slot.name] or ()] if slot.written else grads
                      for slot in case.routine.slots if slots[slot.name]})
    return after


def rows(
    routine: Routine, workload: Workload, dtype: str, forms: Sequence[str], machine: Any, steps: int = 2,
    report: Report = _silent,
) -> Iterator[Row]:
    """Verify the forms of a routine in one dtype configuration. ``report`` is called with each stage as it begins.

    The stages are the data, and each step of the reference and of each form. Muon may have all forms once more,
    by Gram matrices.
    """
    report("data")
    case = make_case(routine, workload, dtype, steps)
    for each in (case, case.by_gram()) if gram_of(routine, dtype) else (case,):
        yield from _rows(each, forms, machine, report)


def _rows(case: Case, forms: Sequence[str], machine: Any, report: Report) -> Iterator[Row]:
    expected = reference(case, report)
    lying_still = idle(case, expected)
    before, alone = unmerged(case.routine), None
    for form in forms:
        row, plan = _verify(case, expected, form, machine, report)
        if machine.name == "gpu":
            time = timing.milliseconds(plan.step)
            if alone is None and not case.routine.forms[before].merged:
                alone = time if form == before else timing.milliseconds(_plan(case, before, machine)[0].step)
            row = row._replace(milliseconds=time, speedup=alone / time if alone else None)
        yield row._replace(problems=(*lying_still, *row.problems))


def counts(machine: Any, workload: Workload) -> bool:
    """Whether launches and bytes are counted."""
    return machine.name == "executor" and workload.elements <= COUNTED


def unmerged(routine: Routine) -> str:
    """The form with launches per tensor, the baseline for the others; if there is none, the merged form."""
    return next((name for name, form in routine.forms.items() if not form.merged), routine.merged_form)


def _verify(case: Case, expected: States, form: str, machine: Any, report: Report) -> tuple[Row, Any]:
    routine, specs = case.routine, case.specs
    before, count = unmerged(routine), len(case.workload)
    plan, arrays = _plan(case, form, machine)
    uncounted = {slot.name for slot in routine.slots if slot.scalar or slot.by_row}
    tensors = [x for name, values in arrays.items() if name not in uncounted for x in values]
    found = Differences()
    for step, (grads, numbers) in enumerate(zip(case.grads, case.hypers, strict=True)):
        report(f"{form}, step {step + 1}")
        if step:
            for array, grad in zip(arrays["grads"], grads, strict=True):
                array.copy_to_device(ulp.bits(grad))
        counting = counts(machine, case.workload) and step == len(case.grads) - 1
        with simt.observe(count=tensors) if counting else nullcontext() as log:
            plan.step(**numbers)
        machine.synchronize()
        for slot, values in expected[step].items():
            for i, want in enumerate(values):
                got = arrays[slot][i].copy_to_host().view(want.dtype)
                found.add(step + 1, slot, i, case.workload.tensors[i].name, want, got)
    launches, traffic = counted(log, tensors, plan)
    signatures = routine.launches(specs, routine.merged_form) // routine.forms[routine.merged_form].launches
    return Row(
        routine=routine.name, dtype=case.dtype, form=form + ", Gram" * bool(case.gram), tensors=count,
        elements=case.workload.elements,
        ops_before=len(specs), ops_after=signatures if routine.forms[form].merged else len(specs),
        launches_before=sum(case.launches(before, slice(i, i + 1)) for i in range(count)), launches_after=launches,
        bytes=traffic, counted=log is not None, max_ulps=found.most, differing=found.count,
        mismatches=tuple(found.shown), problems=unequal("the catalogue", {
            "launches": (case.launches(form), launches),
            "bytes": (routine.bytes(specs, form), traffic),
        }),
    ), plan


class Differences:
    """How many elements of arrays differ, by how many ULPs at most, and the first of them."""

    def __init__(self) -> None:
        self.count = self.most = 0
        self.shown: list[Mismatch] = []

    def add(self, step: int, slot: str, tensor: int, name: str, want: np.ndarray, got: np.ndarray) -> None:
        """Compare two arrays."""
        where, ulps = compare(want, got)
        self.count, self.most = self.count + len(where), max(self.most, int(ulps.max(initial=0)))
        for at, n in zip(where[: SHOWN - len(self.shown)], ulps, strict=False):
            a, b = text_of(want.reshape(-1)[at]), text_of(got.reshape(-1)[at])
            self.shown.append(Mismatch(step, slot, tensor, name, int(at), a, b, int(n)))


def compare(want: np.ndarray, got: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The flat indices at which two arrays differ, and by how many ULPs."""
    a, b = want.reshape(-1), got.reshape(-1)
    if np.array_equal(ulp.bits(a), ulp.bits(b)):
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    where = np.flatnonzero(~ulp.same_bits(a, b))
    return where, ulp.distance(a[where], b[where])


def counted(log: Any, arrays: Sequence[Any], plan: Any) -> tuple[int, int]:
    """Launches, and bytes of arrays, as the executor counted them; without a log, by the plan."""
    if log is None:
        return plan.launches, plan.bytes
    return len(log.launches), sum(log.bytes_read(x) + log.bytes_written(x) for x in arrays)


def unequal(by: str, counts: dict[str, tuple[int, int]]) -> tuple[str, ...]:
    """What differs of counts, each as it is expected and as it is."""
    return tuple(f"{what}: expected {expected:,} by {by}, got {got:,}"
                 for what, (expected, got) in counts.items() if got != expected)


def idle(case: Case, expected: States) -> list[str]:
    """Tensors with a gradient that the reference does not change: a kernel that does nothing would pass there.

    Remainders may stay unchanged when their parameters change.
    """
    return [
        f"{slot.name}[{i}] {case.workload.tensors[i].name}: the reference changes nothing"
        for slot in case.routine.slots
        for i, before in enumerate((slot.written and case.slots[slot.name]) or ())
        if before.size and before.dtype.name not in REMAINDERS and case.grads[0][i].any()
        and np.array_equal(ulp.bits(before), ulp.bits(expected[-1][slot.name][i]))
    ]


def _plan(case: Case, form: str, machine: Any) -> tuple[Any, dict[str, list]]:
    """A plan of kernels, and the bit patterns of its arrays on the device.

    Copies are of bit patterns, because Numba cannot copy bf16.
    """
    bits = {n: [machine.to_device(ulp.bits(x)) for x in values] for n, values in case.slots.items() if values}
    dtypes = {s.name: numpy_dtype(slot_dtype(s, case.dtype)) for s in case.routine.slots}
    slots = {name: [x.view(dtypes[name]) for x in bits[name]] if name in bits else None for name in case.slots}
    positional, named = arguments(case.routine, slots)
    return gpu.plan(case.routine.name, *positional, **named, form=form, **case.choices, **case.hypers[0]), bits


def text_of(x: Any) -> tuple[str, str]:
    """The bit pattern and value, as text."""
    pattern = ulp.bits(x)
    return f"0x{int(pattern):0{2 * pattern.itemsize}x}", str(x)
