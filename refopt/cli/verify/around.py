"""The operations around a step against their references: the gradient check, casts, coalescing.

Unmerged, each would be an op and a launch per tensor; the gradient check would be two, a finite check and a norm.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from refopt import cpu, gpu, simt
from refopt.catalog.data import DTYPES, unavailable
from refopt.catalog.workloads import Workload
from refopt.checks.dtypes import numpy_dtype
from refopt.cli.verify.compare import SHOWN, Mismatch, Row, compare, counts, text_of
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


def row(
    name: str, dtype: str, form: str, workload: Workload, run: Callable[[], Any], plan: Any, machine: Any,
    pairs: Callable[[], list[tuple[np.ndarray, np.ndarray]]], touched: Sequence[Any], ops: int = 1,
) -> Row:
    """Run an operation once and compare its results, pairs of expected and actual arrays."""
    log = None
    if counts(machine, workload):
        with simt.observe(count=touched) as log:
            run()
    else:
        run()
    machine.synchronize()
    differing = most = 0
    mismatches: list[Mismatch] = []
    for i, (want, actual) in enumerate(pairs()):
        indices, ulps = compare(want, actual)
        differing, most = differing + len(indices), max(most, int(ulps.max(initial=0)))
        for at, n in zip(indices[: SHOWN - len(mismatches)], ulps, strict=False):
            a, b = text_of(want.reshape(-1)[at]), text_of(actual.reshape(-1)[at])
            label = workload.tensors[i].name if i < len(workload) else "result"
            mismatches.append(Mismatch(1, form, i, label, int(at), a, b, int(n)))
    launches, traffic, problems = plan.launches, plan.bytes, []
    if log is not None:
        counted = sum(log.bytes_read(x) + log.bytes_written(x) for x in touched)
        for what, planned, seen in (("launches", launches, len(log.launches)), ("bytes", traffic, counted)):
            if planned != seen:
                problems.append(f"{what}: expected {planned:,} by the plan, got {seen:,}")
    count = len(workload)
    return Row(
        routine=name, dtype=dtype, form=form, tensors=count, elements=workload.elements, ops_before=ops * count,
        ops_after=1, launches_before=ops * count, launches_after=launches, bytes=traffic, counted=log is not None,
        max_ulps=most, differing=differing, mismatches=tuple(mismatches), problems=tuple(problems),
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
        kept = [(g, got(x, g)) for g, x in zip(grads, placed, strict=True)]
        return kept + [(want, getattr(check, name).copy_to_host()) for name, want in expected._asdict().items()]

    yield row("check_gradients", dtype, "check", workload, check, check, machine, pairs, placed, ops=2)


def cast_rows(workload: Workload, dtype: str, machine: Any) -> Iterator[Row]:
    """Casts of every tensor to another dtype, scaled."""
    sources = tensors(workload, dtype)
    for other in (name for name in TARGETS[dtype] if not unavailable(name)):
        expected = [np.zeros(x.shape, numpy_dtype(DTYPES[other].param)) for x in sources]
        placed, targets = put(machine, sources), put(machine, expected)
        plan = gpu.cast_plan(placed, targets, scale=SCALE)
        cpu.merged_cast(sources, expected, scale=SCALE)

        def pairs(expected: Any = expected, targets: Any = targets) -> list[tuple[np.ndarray, np.ndarray]]:
            return [(want, got(x, want)) for want, x in zip(expected, targets, strict=True)]

        yield row("merged_cast", dtype, f"to {other}", workload, plan, plan, machine, pairs, [*placed, *targets])


def coalesce_rows(workload: Workload, dtype: str, machine: Any) -> Iterator[Row]:
    """Copies of every tensor into one buffer, and out again."""
    inputs = tensors(workload, dtype)
    placed = put(machine, inputs)
    empty = put(machine, [np.zeros_like(x) for x in inputs])
    there = gpu.coalesce_tensor(placed)
    expected = cpu.coalesce_tensor(inputs, copy_data=True, align_size=256)

    def in_buffer() -> list[tuple[np.ndarray, np.ndarray]]:
        views = [(want, got(x, want)) for want, x in zip(inputs, there.views, strict=True)]
        return [*views, (expected.buffer, got(there.buffer, expected.buffer))]

    def out_again() -> list[tuple[np.ndarray, np.ndarray]]:
        return [(want, got(x, want)) for want, x in zip(inputs, empty, strict=True)]

    for form, arrays, pairs in (("gather", placed, in_buffer), ("scatter", empty, out_again)):
        run = getattr(there, form)
        run(arrays)
        yield row(
            "coalesce_tensor", dtype, form, workload, lambda: run(arrays), there.plan(form), machine, pairs,  # noqa: B023
            [*arrays, there.buffer],
        )


AROUND: dict[str, Callable[[Workload, str, Any], Iterator[Row]]] = {
    "check_gradients": check_rows, "merged_cast": cast_rows, "coalesce_tensor": coalesce_rows,
}
