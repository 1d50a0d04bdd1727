"""The operations around a step against their references: the gradient check, casts, coalescing.

Unmerged, each would be an op and a launch per tensor; the gradient check would be two, a finite check and a norm.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from refopt import cpu, gpu, simt
from refopt.catalog.data import DTYPES, unavailable
from refopt.catalog.workloads import Workload
from refopt.checks.dtypes import numpy_dtype
from refopt.cli.verify.compare import Differences, Row, counted, counts, unequal
from refopt.gpu import timing
from refopt.oracle import ulp

# The targets of casts from each dtype configuration.
TARGETS = {"fp32": ("fp16", "bf16"), "fp64": ("fp32",), "fp16": ("fp32",), "bf16": ("fp32",)}
PLAIN = tuple(TARGETS)
SCALE = 1 / 8


def tensors(workload: Workload, dtype: str, seed: int = 0) -> list[np.ndarray]:
    """Seeded normal values."""
    kind, values = numpy_dtype(DTYPES[dtype].param), np.random.default_rng(seed)
    return [values.standard_normal(tensor.shape).astype(kind) for tensor in workload.tensors]


def put(machine: Any, arrays: Sequence[np.ndarray]) -> list[Any]:
    """Copies on the device, made as bit patterns, because Numba cannot copy bf16."""
    return [machine.to_device(ulp.bits(x)).view(x.dtype) for x in arrays]


def got(array: Any, like: np.ndarray) -> np.ndarray:
    """The array on the host."""
    return array.view(ulp.bits(like).dtype).copy_to_host().view(like.dtype)


def pairs_of(expected: Sequence[np.ndarray], arrays: Sequence[Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Expected arrays, each with what is on the device."""
    return [(want, got(x, want)) for want, x in zip(expected, arrays, strict=True)]


def row(
    name: str, dtype: str, form: str, workload: Workload, run: Callable[[], Any], plan: Any, machine: Any,
    pairs: Callable[[], list[tuple[np.ndarray, np.ndarray]]], touched: Sequence[Any], ops: int = 1,
) -> Row:
    """Run an operation once and compare its results, pairs of expected and actual arrays."""
    with simt.observe(count=touched) if counts(machine, workload) else nullcontext() as log:
        run()
    machine.synchronize()
    found = Differences()
    for i, (want, actual) in enumerate(pairs()):
        found.add(1, form, i, workload.tensors[i].name if i < len(workload) else "result", want, actual)
    launches, traffic = counted(log, touched, plan)
    count = len(workload)
    return Row(
        routine=name, dtype=dtype, form=form, tensors=count, elements=workload.elements, ops_before=ops * count,
        ops_after=1, launches_before=ops * count, launches_after=plan.launches, bytes=plan.bytes,
        counted=log is not None, max_ulps=found.most, differing=found.count, mismatches=tuple(found.shown),
        problems=unequal("the plan", {"launches": (plan.launches, launches), "bytes": (plan.bytes, traffic)}),
        milliseconds=timing.milliseconds(run) if machine.name == "gpu" else None,
    )


def check_rows(workload: Workload, dtype: str, machine: Any) -> Iterator[Row]:
    """Finite check, norm, unscaling and clipping of all gradients in one pass."""
    grads, scale = tensors(workload, dtype), np.array([8], np.float32)
    placed = put(machine, grads)
    with gpu.use(machine.name):
        check = gpu.gradient_check(placed, loss_scale=machine.to_device(scale), max_norm=1.0)
    expected = cpu.check_gradients(grads, loss_scale=scale, max_norm=1.0)

    def pairs() -> list[tuple[np.ndarray, np.ndarray]]:
        found = [(want, getattr(check, name).copy_to_host()) for name, want in expected._asdict().items()]
        return pairs_of(grads, placed) + found

    yield row("check_gradients", dtype, "check", workload, check, check, machine, pairs, placed, ops=2)


def cast_rows(workload: Workload, dtype: str, machine: Any) -> Iterator[Row]:
    """Casts of every tensor to another dtype, scaled."""
    sources = tensors(workload, dtype)
    for other in (name for name in TARGETS[dtype] if not unavailable(name)):
        expected = [np.zeros(x.shape, numpy_dtype(DTYPES[other].param)) for x in sources]
        placed, targets = put(machine, sources), put(machine, expected)
        plan = gpu.cast_plan(placed, targets, scale=SCALE)
        cpu.merged_cast(sources, expected, scale=SCALE)
        pairs = partial(pairs_of, expected, targets)
        yield row("merged_cast", dtype, f"to {other}", workload, plan, plan, machine, pairs, [*placed, *targets])


def coalesce_rows(workload: Workload, dtype: str, machine: Any) -> Iterator[Row]:
    """Copies of every tensor into one buffer, and out again."""
    inputs = tensors(workload, dtype)
    placed = put(machine, inputs)
    empty = put(machine, [np.zeros_like(x) for x in inputs])
    there = gpu.coalesce_tensor(placed)
    expected = cpu.coalesce_tensor(inputs, copy_data=True, align_size=256)

    def in_buffer() -> list[tuple[np.ndarray, np.ndarray]]:
        return [*pairs_of(inputs, there.views), (expected.buffer, got(there.buffer, expected.buffer))]

    for form, arrays, pairs in (("gather", placed, in_buffer), ("scatter", empty, partial(pairs_of, inputs, empty))):
        run = getattr(there, form)
        run(arrays)
        yield row(
            "coalesce_tensor", dtype, form, workload, lambda: run(arrays), there.plan(form), machine, pairs,  # noqa: B023
            [*arrays, there.buffer],
        )


AROUND: dict[str, Callable[[Workload, str, Any], Iterator[Row]]] = {
    "check_gradients": check_rows, "merged_cast": cast_rows, "coalesce_tensor": coalesce_rows,
}
