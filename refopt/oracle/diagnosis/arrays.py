"""Hypotheses about arrays: how they are read, and how results change before they are stored."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from refopt.checks.dtypes import SIZES, numpy_dtype
from refopt.checks.rows import Routine, Slot
from refopt.oracle.bound.storage import is_remainder
from refopt.oracle.cases import by_count
from refopt.oracle.diagnosis.situation import Hypothesis, Situation
from refopt.oracle.exact.cases import has, memory


def of_arrays(row: Routine) -> Iterator[Hypothesis]:
    """How arrays are read, and how results change before they are stored."""
    yield Hypothesis("gradient with the opposite sign", partial(_read, name="grads", by=lambda x: -x), "array", "grads")
    for by in ("all tensors", "each tensor"):
        yield Hypothesis(f"gradients clipped, to a norm of 1 of {by}", partial(_clipped, by=by), "clipped", by)
    for ranks in (4, 8):  # of two, equal gradients that do not overflow are those read in float16
        late = lambda x, n=ranks: (sum([x.astype(np.float16)] * n) / np.float16(n)).astype(x.dtype)  # noqa: E731
        text = f"gradients of {ranks} ranks added in float16 and divided after the sum, which may overflow"
        yield Hypothesis(text, partial(_read, name="grads", by=late), "array", "grads")
    yield Hypothesis("gradient taken as 0", partial(_read, name="grads", by=np.zeros_like), "array", "grads")
    for slot in row.slots:
        name = slot.name
        if name == "master_params":
            yield Hypothesis("masters not read: the rounded parameter is used", _without_master, "array", name)
            text = "the parameter is moved from its own rounded value, not rounded from its master"
            yield Hypothesis(text, _apart, "array", name)
        if slot.written and not slot.scalar:
            yield Hypothesis(f"{name} not written", partial(kept, name=name), "kept", name)
        if name in row.states:
            yield Hypothesis(f"{name} starts from 1", partial(_started, name=name), "array", name)
        if name not in ("params", "grads", "master_params", *by_count(row)):
            yield Hypothesis(f"{name} not read: taken as 0", partial(_read, name=name, by=np.zeros_like), "array", name)
        for what, which in NEIGHBOURS.items() if name != "params" else ():
            yield Hypothesis(f"{name} of {what}", partial(_of_tensor, name=name, which=which), "array", name, False)
        for dtype in ("float16", "bfloat16", "float32") if has("bfloat16") else ("float16", "float32"):
            yield from _in_dtype(row, slot, dtype)


    kept_in = [slot.name for slot in row.slots if slot.written and not slot.scalar and slot.name != "master_params"]
    for names in ((*kept_in,), *((name,) for name in kept_in)):
        text = f"{names[0] if len(names) == 1 else 'results'} cut to 16 bits, rounded towards 0, not to nearest"
        yield Hypothesis(text, partial(_cut, names=names), "narrow", names[0])


def _cut(s: Situation, names: tuple[str, ...]) -> Situation | None:
    there = frozenset(name for name in names if s.arrays.get(name) is not None and s.arrays[name].dtype.itemsize == 2)
    remainder = "params" in there and is_remainder(s.arrays.get("master_params"))
    return s._replace(cut=s.cut | there) if there and not remainder else None


def _in_dtype(row: Routine, slot: Slot, dtype: str) -> Iterator[Hypothesis]:
    """A slot that is stored, used or read in another dtype."""
    name = slot.name
    if slot.written and not slot.scalar:
        yield Hypothesis(f"{name} stored in {dtype}", partial(_narrow, name=name, dtype=dtype), "narrow", name)
    if not slot.written or name in row.states:
        yield Hypothesis(f"{name} read in {dtype}", partial(_through, name=name, dtype=dtype), "array", name)


def _started(s: Situation, name: str) -> Situation | None:
    """A state that is 1 before the first step."""
    return _read(s, name, np.ones_like) if s.case.count == 1 else None


def _clipped(s: Situation, by: str) -> Situation | None:
    """Gradients clipped to a norm of 1, over all tensors or for each."""
    grads = [x for x in s.case.grads if x is not None] if by == "all tensors" else [s.arrays["grads"]]
    norm = np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in grads))
    return s._replace(numbers=s.numbers | {"grad_factor": s.numbers.get("grad_factor", 1) / norm}) if norm > 1 else None


NEIGHBOURS: dict[str, Callable[[int, int], int]] = {
    "the first tensor": lambda i, n: 0, "the tensor before": lambda i, n: i - 1,
    "the tensor after": lambda i, n: i + 1, "the last tensor": lambda i, n: n - 1,
}


def _read(s: Situation, name: str, by: Callable[[Any], Any]) -> Situation | None:
    x = s.arrays.get(name)
    return None if x is None else s._replace(arrays=s.arrays | {name: by(x)})


def _without_master(s: Situation) -> Situation | None:
    return _read(s, "master_params", lambda x: s.arrays["params"].astype(x.dtype)) if has_master(s) else None


def _apart(s: Situation) -> Situation | None:
    return s._replace(apart=True) if has_master(s) else None


def has_master(s: Situation) -> bool:
    """Whether the tensor has a master, other than a remainder."""
    master = s.arrays.get("master_params")
    return master is not None and not is_remainder(master)


def _of_tensor(s: Situation, name: str, which: Callable[[int, int], int]) -> Situation | None:
    j, mine = which(s.tensor, len(s.case)), s.arrays.get(name)
    if mine is None or j == s.tensor or not 0 <= j < len(s.case):
        return None
    other, size = s.case.lists()[name][j], s.case.lists()[name][s.tensor].size
    if other is None or other.size < size:
        return None
    elements = np.empty_like(mine)
    memory(elements)[...] = memory(other)[:size][s.elements]
    return s._replace(arrays=s.arrays | {name: elements})


def _narrow(s: Situation, name: str, dtype: str) -> Situation | None:
    x = s.arrays.get(name)
    if x is None or x.dtype.kind == "u" or SIZES[dtype] >= x.dtype.itemsize:
        return None
    return s._replace(narrow={**s.narrow, name: dtype})


def _through(s: Situation, name: str, dtype: str) -> Situation | None:
    x = s.arrays.get(name)
    narrow = x is not None and SIZES[dtype] < x.dtype.itemsize
    return _read(s, name, lambda x: x.astype(numpy_dtype(dtype)).astype(x.dtype)) if narrow else None


def of_precision() -> Iterator[Hypothesis]:
    """Operations rounded to a narrower dtype, and subnormal numbers treated as 0."""
    flushed = partial(Situation._replace, flushes=True, loose=True)
    text = "subnormal numbers flushed to zero (set={'flush_to_zero': True} declares that)"
    yield Hypothesis(text, lambda s: None if s.flushes else flushed(s), "flush", "", False)
    for to in ("float32", "float16", "bfloat16") if has("bfloat16") else ("float32", "float16"):
        yield Hypothesis(f"computed in {to}", partial(_worked, to=to), "arithmetic")


def _worked(s: Situation, to: str) -> Situation | None:
    param = s.arrays["params"].dtype
    fits = param.name == to if to != "float32" else param.itemsize == 8
    return s._replace(worked=to) if fits and not s.worked else None


def kept(s: Situation, name: str) -> Situation | None:
    """A slot that keeps its old value."""
    return s._replace(kept=s.kept | {name}) if s.arrays.get(name) is not None else None
