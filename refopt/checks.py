"""What every routine checks before it touches anything.

An error names the routine, the argument, the index, what was expected and what came.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Hyper, Routine, Spec
from refopt.dtypes import ITEM_SIZES, SIZES, arithmetic, name_of, widens


class Array(NamedTuple):
    """What the checks need to know of an array. Strides are in bytes."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    writable: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def layout(self) -> tuple[int, ...] | None:
        """Strides in elements, 0 for extents of one; None if the array is not dense in some axis order."""
        item = ITEM_SIZES[self.dtype]
        if self.size == 0:
            return ()
        axes = sorted((s, n) for s, n in zip(self.strides, self.shape, strict=True) if n > 1)
        expected = item
        for stride, extent in axes:
            if stride != expected:
                return None
            expected *= extent
        return tuple(s // item if n > 1 else 0 for s, n in zip(self.strides, self.shape, strict=True))


class Call(NamedTuple):
    """A checked call: the arrays by slot, the tensors that have a gradient, the hyperparameters."""

    routine: Routine
    slots: dict[str, list]
    arrays: dict[str, list[Array | None]]
    active: list[int]
    hypers: dict[str, Any]
    shared: dict[str, Array]

    def hyper_of(self, i: int) -> dict[str, Any]:
        """The hyperparameters of tensor ``i``, each a single value."""
        return {name: value[i] if isinstance(value, list) else value for name, value in self.hypers.items()}

    def reals(self) -> set[type]:
        """The arithmetic types that a hyperparameter must be a number of."""
        return _reals(self.arrays)

    def spec(self, i: int) -> Spec:
        """Size and dtypes of tensor ``i``."""
        arrays = [self.arrays[slot][i] for slot in self.routine.slot_names]
        return Spec(arrays[0].size, tuple(a and a.dtype for a in arrays))  # type: ignore[union-attr]


def host_array(value: Any, where: str) -> Array:
    """Describe a NumPy array, or say why it is none."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{where}: expected a NumPy array, got {type(value).__module__}.{type(value).__name__}")
    if not value.dtype.isnative:
        raise TypeError(f"{where}: expected native byte order, got {value.dtype.str}")
    return Array(value.ctypes.data, value.shape, name_of(value.dtype), value.strides, value.flags.writeable)


def flat(array: np.ndarray | None) -> np.ndarray | None:
    """The elements of a dense array in memory order: a view, shape (size,)."""
    if array is None or array.ndim == 0:
        return array if array is None else array.reshape(1)
    return array.transpose(np.argsort([-s for s in array.strides], kind="stable")).reshape(-1)


def require_subnormals() -> None:
    """Refuse to compute where subnormal numbers are flushed to zero (numerics, N14)."""
    if np.finfo(np.float32).tiny / np.float32(2) == 0:
        raise RuntimeError(
            "this thread flushes subnormal numbers to zero, so no result would have the specified bits; a library "
            "built with -ffast-math that was loaded earlier may have switched that on"
        )


def check(
    routine: Routine,
    slots: dict[str, Any],
    hypers: dict[str, Any],
    describe: Callable[[Any, str], Array],
    shared: dict[str, Any] | None = None,
) -> Call:
    """Check a call of the merged routine as a whole; raises, or returns the call made regular.

    ``shared`` holds arrays of one element that are for all tensors, or ``None``.
    """
    name = routine.merged_name
    lists = _lists(name, routine, slots)
    arrays = {
        slot: [None if x is None else describe(x, f"{name}: {slot}[{i}]") for i, x in enumerate(values)]
        for slot, values in lists.items()
    }
    count = len(lists["params"])
    for i in range(count):
        _check_tensor(name, routine, arrays, i)
    common = {key: describe(x, f"{name}: {key}") for key, x in (shared or {}).items() if x is not None}
    exact = ["float64"] if _reals(arrays) == {np.float64} else []
    for key, one in common.items():
        _check_one(f"{name}: {key}", one, ["float32", *(exact if key == "grad_factor" else [])])
    _check_overlap(name, routine, arrays, common)
    regular = check_hypers(routine, hypers, count, _reals(arrays))
    active = [i for i in range(count) if arrays["grads"][i] is not None]
    return Call(routine, lists, arrays, active, regular, common)


def _reals(arrays: dict[str, list[Array | None]]) -> set[type]:
    return {arithmetic(a.dtype) for a in arrays["params"] if a} or {np.float64}


def _lists(name: str, routine: Routine, slots: dict[str, Any]) -> dict[str, list]:
    lists: dict[str, list] = {}
    for slot in routine.slots:
        value = slots[slot.name]
        if value is None and slot.optional:
            value = [None] * len(lists["params"])
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise TypeError(f"{name}: {slot.name}: expected a list of arrays, got {type(value).__name__}")
        lists[slot.name] = list(value)
        expected, got = len(lists["params"]), len(value)
        if got != expected:
            raise ValueError(f"{name}: {slot.name}: expected {expected} entries, as params has, got {got}")
        for i, entry in enumerate(value):
            if entry is None and not slot.optional and slot.name != "grads":
                raise TypeError(f"{name}: {slot.name}[{i}]: expected an array, got None")
    return lists


def _check_tensor(name: str, routine: Routine, arrays: dict[str, list[Array | None]], i: int) -> None:
    param = arrays["params"][i]
    assert param is not None
    if param.dtype not in SIZES:
        raise TypeError(f"{name}: params[{i}]: expected one of {', '.join(SIZES)}, got {param.dtype}")
    real = arithmetic(param.dtype)
    for slot in routine.slots:
        array = arrays[slot.name][i]
        if array is None:
            continue
        where = f"{name}: {slot.name}[{i}]"
        if slot.scalar:
            _check_one(where, array, [np.dtype(real).name], written=True)
            continue
        if array.shape != param.shape:
            raise ValueError(f"{where}: expected shape {param.shape}, as params[{i}] has, got {array.shape}")
        _check_dtype(where, slot.name, array.dtype, param.dtype, real, routine.remainders)
        _check_dense(where, array)
        if array.layout() != param.layout():
            raise ValueError(
                f"{where}: expected the axis order of params[{i}] with strides of {param.layout()} elements, "
                f"got {array.layout()}"
            )
        if slot.written and not array.writable:
            raise ValueError(f"{where}: expected a writable array, got a read-only one")


def _check_dense(where: str, array: Array) -> None:
    if array.layout() is None:
        raise ValueError(f"{where}: expected a dense array, got strides {array.strides} for {array.shape}")


def _check_one(where: str, array: Array, dtypes: list[str], *, written: bool = False) -> None:
    if array.size != 1:
        raise ValueError(f"{where}: expected one element, got shape {array.shape}")
    if array.dtype not in dtypes:
        raise TypeError(f"{where}: expected {' or '.join(dtypes)}, got {array.dtype}")
    if written and not array.writable:
        raise ValueError(f"{where}: expected a writable array, got a read-only one")


def _check_dtype(where: str, slot: str, dtype: str, param: str, real: type, remainders: bool) -> None:
    exact = np.dtype(real).name
    if slot == "grads":
        if not widens(dtype, real):
            raise TypeError(f"{where}: expected a dtype that widens to {exact}, got {dtype}")
    elif slot == "master_params":
        both = [exact, "uint16"] if remainders and param == "bfloat16" else [exact]
        if dtype not in both or param == exact:
            expected = f"no master for a {param} parameter" if param == exact else " or ".join(both)
            raise TypeError(f"{where}: expected {expected}, got {dtype}")
    elif dtype not in (exact, param):
        raise TypeError(f"{where}: expected {' or '.join(dict.fromkeys((exact, param)))}, got {dtype}")


def _spans(
    routine: Routine, arrays: dict[str, list[Array | None]], shared: dict[str, Array]
) -> Iterator[tuple[int, int, bool, str]]:
    for label, one in shared.items():
        yield one.address, one.address + SIZES[one.dtype], False, label
    for slot in routine.slots:
        for i, array in enumerate(arrays[slot.name]):
            if array and array.size:
                stop = array.address + array.size * ITEM_SIZES[array.dtype]
                yield array.address, stop, slot.written, f"{slot.name}[{i}]"


def _check_overlap(
    name: str, routine: Routine, arrays: dict[str, list[Array | None]], shared: dict[str, Array]
) -> None:
    """No written array shares memory with any other; gradients may share memory with gradients."""
    _refuse_overlaps(name, _spans(routine, arrays, shared))


def _refuse_overlaps(name: str, spans: Iterator[tuple[int, int, bool, str]]) -> None:
    """Raise if a span of addresses that is written shares memory with any other."""
    reach: dict[bool, tuple[int, str]] = {True: (0, ""), False: (0, "")}
    for start, stop, written, label in sorted(spans):
        for other_written, (end, other) in reach.items():
            if start < end and (written or other_written):
                raise ValueError(f"{name}: {label}: expected memory of its own, got an overlap with {other}")
        reach[written] = max(reach[written], (stop, label))


def check_hypers(routine: Routine, hypers: dict[str, Any], count: int, reals: set[type]) -> dict[str, Any]:
    """Every number of the routine as a float or a list of floats, every choice as given or by default."""
    name = routine.merged_name
    known = [hyper.name for hyper in routine.hypers] + list(routine.choices)
    for unknown in set(hypers) - set(known):
        raise TypeError(f"{name}: {unknown}: expected one of {', '.join(known)}")
    regular: dict[str, Any] = {
        hyper.name: check_hyper(routine, hyper, hypers.get(hyper.name, hyper.default), count, reals)
        for hyper in routine.hypers
    }
    for choice, values in routine.choices.items():
        value = hypers.get(choice, values[0])
        if value not in values:
            raise ValueError(f"{name}: {choice}: expected one of {', '.join(map(str, values))}, got {value!r}")
        regular[choice] = value
    return regular


def check_hyper(
    routine: Routine, hyper: Hyper, value: Any, count: int, reals: set[type]
) -> float | list[float]:
    """One number as a float, or as a list with one for each of ``count`` tensors."""
    if type(value) is (int if hyper.whole else float) and 1e-37 < value < 1e38 and value < hyper.below / 2:
        return float(value)  # the ordinary case, in the time of a step: normal in every type, not rounded to the bound
    where = f"{routine.merged_name}: {hyper.name}"
    if value is None:
        raise TypeError(f"{where}: expected a number, got None")
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str):
        return _number(where, hyper, value, reals)
    if not hyper.per_tensor:
        raise TypeError(f"{where}: expected one number for all tensors, got {len(value)} values")
    if len(value) != count:
        raise ValueError(f"{where}: expected one number or one per tensor, {count}, got {len(value)}")
    return [_number(f"{where}[{i}]", hyper, entry, reals) for i, entry in enumerate(value)]


def _number(where: str, hyper: Hyper, value: Any, reals: set[type]) -> float:
    if not isinstance(value, Real | np.floating | np.integer) or isinstance(value, bool):
        raise TypeError(f"{where}: expected a number, got {value!r}")
    bound = "above 0" if hyper.positive else "at least 0"
    if hyper.below < math.inf:
        bound += f" and below {hyper.below:.10g}"
    for real in reals:
        with np.errstate(over="ignore"):
            rounded = real(value)
        least = rounded > 0 if hyper.positive else rounded >= 0
        if not (np.isfinite(rounded) and least and rounded < hyper.below) or (hyper.whole and value % 1):
            kind = "whole number" if hyper.whole else f"finite {np.dtype(real).name}"
            raise ValueError(f"{where}: expected a {kind} {bound}, got {value!r}")
    return float(value) + 0.0  # -0 is taken for 0


def check_gradients(
    grads: Any, loss_scale: Any, max_norm: Any, epsilon: Any, describe: Callable[[Any, str], Array]
) -> list[Array | None]:
    """Check the arguments of ``scan_gradients``; raises, or describes the gradients."""
    name = "scan_gradients"
    if not isinstance(grads, Sequence) or isinstance(grads, str):
        raise TypeError(f"{name}: grads: expected a list of arrays, got {type(grads).__name__}")
    arrays = [None if g is None else describe(g, f"{name}: grads[{i}]") for i, g in enumerate(grads)]
    for i, array in enumerate(arrays):
        if array is None:
            continue
        if array.dtype not in SIZES:
            raise TypeError(f"{name}: grads[{i}]: expected one of {', '.join(SIZES)}, got {array.dtype}")
        _check_dense(f"{name}: grads[{i}]", array)
    if loss_scale is not None:
        _check_one(f"{name}: loss_scale", describe(loss_scale, f"{name}: loss_scale"), ["float32"])
    for key, value in (("max_norm", max_norm), ("epsilon", epsilon)):
        if not isinstance(value, int | float | np.number) or isinstance(value, bool) or not value >= 0:
            raise ValueError(f"{name}: {key}: expected a number of at least 0, got {value!r}")
    return arrays


def scan_type(arrays: list[Array | None]) -> type:
    """The type that gradients are scanned in: fp64 if one of them is fp64."""
    return np.float64 if any(a and a.dtype == "float64" for a in arrays) else np.float32


def check_loss_scaling(arrays: list[Any], describe: Callable[[Any, str], Array], **numbers: Any) -> dict[str, Any]:
    """Check the arguments of ``update_loss_scaling``; raises, or returns the numbers, ratios in fp32."""
    name = "update_loss_scaling"
    kinds = {"found_inf": "float32", "loss_scale": "float32", "good_steps": "int32", "bad_steps": "int32"}
    for (key, dtype), array in zip(kinds.items(), arrays, strict=True):
        where = f"{name}: {key}"
        _check_one(where, describe(array, where), [dtype], written=key != "found_inf")
    for key in ("incr_every_n_steps", "decr_every_n_nan_or_inf"):
        if not isinstance(numbers[key], int | np.integer) or isinstance(numbers[key], bool) or numbers[key] < 1:
            raise ValueError(f"{name}: {key}: expected an integer of at least 1, got {numbers[key]!r}")
    for key, low, high in (("incr_ratio", 1, math.inf), ("decr_ratio", 0, 1)):
        value = numbers[key]
        if not isinstance(value, int | float | np.number) or not low <= value <= high or value in (0, math.inf):
            raise ValueError(f"{name}: {key}: expected a number from {low} to {high}, got {value!r}")
    return {key: int(value) if "every" in key else np.float32(value) for key, value in numbers.items()}


Names = tuple[str, str, str]  # of the function, its sources and its targets, for errors


class Cast(NamedTuple):
    """A checked cast: pairs of source and target, ``None`` for pairs that are not there, and the scale."""

    pairs: list[tuple[Array, Array] | None]
    scale: float | Array

    def reals(self) -> set[type]:
        """The types that pairs are scaled in."""
        return {cast_type(source.dtype, target.dtype) for source, target in filter(None, self.pairs)}


def cast_type(source: str, target: str) -> type:
    """The arithmetic type of a cast: fp64 if either side is."""
    return np.float64 if "float64" in (source, target) else np.float32


def check_cast(
    sources: Any, targets: Any, scale: Any, describe: Callable[[Any, str], Array],
    names: Names = ("merged_cast", "sources", "targets"),
) -> Cast:  # fmt: skip
    """Check the arguments of ``merged_cast``, under the names that the caller knows; raises, or describes them."""
    name, first, second = names
    for key, values in ((first, sources), (second, targets)):
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise TypeError(f"{name}: {key}: expected a list of arrays, got {type(values).__name__}")
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
    _refuse_overlaps(name, _cast_spans(call, first, second))
    return call


def _check_pair(name: str, first: str, second: str, source: Array, target: Array) -> None:
    if source.dtype not in ITEM_SIZES:
        raise TypeError(f"{name}: {first}: expected one of {', '.join(ITEM_SIZES)}, got {source.dtype}")
    if source.dtype != target.dtype and not (source.dtype in SIZES and target.dtype in SIZES):
        expected = f"one of {', '.join(SIZES)}" if source.dtype in SIZES else source.dtype
        raise TypeError(f"{name}: {second}: expected {expected} for {first} of {source.dtype}, got {target.dtype}")
    if source.shape != target.shape:
        raise ValueError(f"{name}: {second}: expected shape {source.shape}, as {first} has, got {target.shape}")
    _check_dense(f"{name}: {first}", source)
    _check_dense(f"{name}: {second}", target)
    if source.layout() != target.layout():
        raise ValueError(
            f"{name}: {second}: expected the axis order of {first} with strides of {source.layout()} elements, "
            f"got {target.layout()}"
        )
    if not target.writable:
        raise ValueError(f"{name}: {second}: expected a writable array, got a read-only one")


def check_scale(
    name: str,
    first: str,
    pairs: Sequence[tuple[Array, Array] | None],
    scale: Any,
    describe: Callable[[Any, str], Array] | None = None,
) -> float | Array:
    """The scale of a cast: a float that is finite where it is used, or, given ``describe``, an array of one element."""
    where = f"{name}: scale"
    number = isinstance(scale, Real | np.number) and not isinstance(scale, bool)
    if not number and describe is None:
        raise TypeError(f"{where}: expected a number, as before, got {type(scale).__name__}")
    if not number and not hasattr(scale, "shape"):
        raise TypeError(f"{where}: expected a number or an array of one element, got {scale!r}")
    found = None if number else describe(scale, where)  # type: ignore[misc]
    if found:
        _check_one(where, found, ["float32", "float64"])
    if number and scale == 1:
        return 1.0
    for i, pair in enumerate(pairs):
        if pair and pair[0].dtype not in SIZES:
            raise TypeError(f"{name}: {first}[{i}]: expected one of {', '.join(SIZES)} to scale, got {pair[0].dtype}")
    if found:
        return found
    for real in Cast(list(pairs), 1.0).reals() or {np.float64}:
        with np.errstate(over="ignore"):
            if not np.isfinite(real(scale)):
                raise ValueError(f"{where}: expected a finite {np.dtype(real).name}, got {scale!r}")
    return float(scale) + 0.0  # -0 is taken for 0


def _cast_spans(call: Cast, first: str, second: str) -> Iterator[tuple[int, int, bool, str]]:
    if isinstance(call.scale, Array):
        yield call.scale.address, call.scale.address + SIZES[call.scale.dtype], False, "scale"
    for i, (source, target) in ((i, pair) for i, pair in enumerate(call.pairs) if pair and pair[0].size):
        yield target.address, target.address + target.size * ITEM_SIZES[target.dtype], True, f"{second}[{i}]"
        if (source.address, source.dtype) != (target.address, target.dtype):
            yield source.address, source.address + source.size * ITEM_SIZES[source.dtype], False, f"{first}[{i}]"
