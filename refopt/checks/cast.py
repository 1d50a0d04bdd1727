"""Checks of casts and copies."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.arguments import is_number, kind_of, listed, number, shown
from refopt.checks.arrays import Array, check_dense, check_like, check_one, refuse_overlaps
from refopt.checks.dtypes import ITEM_SIZES, SIZES

Names = tuple[str, str, str]  # of the function, its sources and its targets, for errors


class Cast(NamedTuple):
    """A checked cast: pairs of source and target, ``None`` for missing pairs, and the scale."""

    pairs: list[tuple[Array, Array] | None]
    scale: float | Array

    def reals(self) -> set[type]:
        """The types in which pairs are scaled."""
        return {cast_type(source.dtype, target.dtype) for source, target in filter(None, self.pairs)}


def cast_type(source: str, target: str) -> type:
    """The arithmetic type of a cast: fp64 if either side is."""
    return np.float64 if "float64" in (source, target) else np.float32


def check_cast(
    sources: Any, targets: Any, scale: Any, describe: Callable[[Any, str], Array],
    names: Names = ("merged_cast", "sources", "targets"),
) -> Cast:
    """Check the arguments of ``merged_cast``, under the caller's names; raises, or describes them."""
    name, first, second = names
    sources, targets = (listed(f"{name}: {key}", values) for key, values in ((first, sources), (second, targets)))
    if len(sources) != len(targets):
        raise ValueError(f"{name}: {second}: expected {len(sources)} entries, as {first} has, got {len(targets)}")
    pairs: list[tuple[Array, Array] | None] = []
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        here, there = f"{first}[{i}]", f"{second}[{i}]"
        if (source is None) != (target is None):
            expected, got = ("None", "an array") if source is None else ("an array", "None")
            raise TypeError(f"{name}: {there}: expected {expected}, as {here} is, got {got}")
        if source is None:
            pairs.append(None)
            continue
        pairs.append((describe(source, f"{name}: {here}"), describe(target, f"{name}: {there}")))
        _check_pair(name, here, there, *pairs[-1])  # type: ignore[misc]
    call = Cast(pairs, check_scale(name, first, pairs, scale, describe))
    refuse_overlaps(name, _cast_spans(call, first, second))
    return call


def _check_pair(name: str, first: str, second: str, source: Array, target: Array) -> None:
    if source.dtype not in ITEM_SIZES:
        raise TypeError(f"{name}: {first}: expected one of {', '.join(ITEM_SIZES)}, got {source.dtype}")
    if source.dtype != target.dtype and not (source.dtype in SIZES and target.dtype in SIZES):
        expected = f"one of {', '.join(SIZES)}" if source.dtype in SIZES else source.dtype
        raise TypeError(f"{name}: {second}: expected {expected} for {first} of {source.dtype}, got {target.dtype}")
    check_dense(f"{name}: {first}", source)
    check_like(f"{name}: {second}", target, source, first, written=True)


def check_scale(
    name: str, first: str, pairs: Sequence[tuple[Array, Array] | None], scale: Any,
    describe: Callable[[Any, str], Array] | None = None,
) -> float | Array:
    """The scale of a cast: a float that is finite in the types used, or, given ``describe``, a one-element array."""
    where = f"{name}: scale"
    array = None if is_number(scale) and not isinstance(scale, np.ndarray) else _scale_array(where, scale, describe)
    if array is None and scale == 1:
        return 1.0
    for i, pair in enumerate(pairs):
        if pair and pair[0].dtype not in SIZES:
            raise TypeError(f"{name}: {first}[{i}]: expected one of {', '.join(SIZES)} to scale, got {pair[0].dtype}")
    if array:
        return array
    plain, *_ = (number(where, scale, real=real) for real in Cast(list(pairs), 1.0).reals() or {np.float64})
    return plain + 0.0  # turns -0 into 0


def _scale_array(where: str, scale: Any, describe: Callable[[Any, str], Array] | None) -> Array:
    """The description of a scale that is an array."""
    if describe is None:
        raise TypeError(f"{where}: expected a number, as before, got {kind_of(scale)}")
    if isinstance(scale, np.generic) or not hasattr(scale, "shape"):
        raise TypeError(f"{where}: expected a number or an array of one element, got {shown(scale)}")
    array = describe(scale, where)
    check_one(where, array, ["float32", "float64"])
    return array


def _cast_spans(call: Cast, first: str, second: str) -> Iterator[tuple[int, int, bool, str]]:
    if isinstance(call.scale, Array):
        yield *call.scale.span, False, "scale"
    for i, (source, target) in ((i, pair) for i, pair in enumerate(call.pairs) if pair and pair[0].size):
        yield *target.span, True, f"{second}[{i}]"
        if (source.address, source.dtype) != (target.address, target.dtype):
            yield *source.span, False, f"{first}[{i}]"
