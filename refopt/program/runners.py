"""How each op is run: bound to its arrays once, then called in every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from refopt import cpu
from refopt.checks.dtypes import ITEM_SIZES
from refopt.program import batches, kinds, rows
from refopt.program.backward import Backward
from refopt.program.ops import Op
from refopt.program.update import Runner, Update

if TYPE_CHECKING:
    from refopt.program.bound import Bound
    from refopt.program.program import Program


def bind(bound: Bound, op: Op) -> Runner:
    """The runner of an op, for the arrays that are there now."""
    routine = kinds.routine_of(op)
    if routine is not None:
        return Update(bound, op, routine)
    make = runner_of(op.type)
    assert make is not None, op.type  # `Bound` has looked
    return Runner(make(bound, op))


def runner_of(kind: str) -> Callable[[Bound, Op], Callable[[], Any]] | None:
    """What binds ops of a type that is no routine's, if they can be run."""
    return RUNNERS.get(kind) or kinds.of_packages("RUNNERS", kind)


def sequence(program: Program, chunk: int) -> list[str]:
    """The collectives of a program in words, alike on ranks that fit together.

    Args:
        program: the program.
        chunk: the alignment of buffers, which decides how much padding goes along.
    """
    calls = []
    for part in ("startup", "main"):
        for op in getattr(program, part):
            parts = batches.calls(op) if op.type in kinds.COLLECTIVES else []
            for k, each in enumerate(parts):
                names = ", ".join(str(program.vars[name]) for name in _in_memory(program, each.inputs["x"]))
                root = f" root {each.attrs['root']}" if "root" in each.attrs else ""
                layout = "".join(f" {key}={each.attrs[key]}" for key in kinds.LAYOUT if key in each.attrs)
                aligned = f" aligned to {chunk}{layout}" if len(each.inputs["x"]) > 1 else ""
                batch = f", {k + 1} of {len(parts)} in a batch" if op.type == batches.BATCH else ""
                calls.append(f"{part} {each.type}{root} of {names}{aligned}{batch}")
    return calls


def _in_memory(program: Program, names: tuple[str, ...]) -> list[str]:
    """Variables in the order in which they lie in their buffer, if they do."""
    buffer = program.buffer_of.get(names[0])
    if buffer is None:
        return list(names)
    end = len(program.views[buffer])
    return sorted(names, key=lambda name: program.place_of[name] if program.buffer_of.get(name) == buffer else end)


def _collective(bound: Bound, op: Op) -> Callable[[], Any]:
    """A call on one array, or on the range of a buffer that several lie in side by side."""
    names = op.inputs["x"]
    array = bound.arrays[names[0]] if len(names) == 1 else _range(bound, op, names)
    call = getattr(bound.comm, op.type)
    root = (op.attrs["root"],) if "root" in op.attrs else ()
    return lambda: call(array, *root)


def _batch(bound: Bound, op: Op) -> Callable[[], Any]:
    calls = [_collective(bound, each) for each in batches.calls(op)]

    def run() -> None:
        with bound.comm.batch():
            for call in calls:
                call()

    return run


def _range(bound: Bound, op: Op, names: tuple[str, ...]) -> Any:
    """The part of a buffer from the first of some tensors to the padding of the last.

    Raises:
        ValueError: naming two of them that do not lie next to each other.
    """
    backend, vars = bound.backend, bound.program.vars
    described = {name: backend.describe(bound.arrays[name], f"{op.type}: {name!r}") for name in names}
    ordered = sorted(names, key=lambda name: described[name].address)
    dtype = vars[names[0]].dtype
    item, lengths = ITEM_SIZES[dtype], []
    for name in ordered:
        lengths.append(_padded(op.attrs, described[name].size, dtype, backend.chunk))
    for k in range(1, len(ordered)):
        expected = described[ordered[k - 1]].address + lengths[k - 1] * item
        if described[ordered[k]].address != expected:
            raise ValueError(
                f"{op.type}: {ordered[k]!r}: expected it at address {expected:#x}, after {ordered[k - 1]!r} with its "
                f"padding, got {described[ordered[k]].address:#x}"
            )
    buffer = bound.arrays.get(bound.program.buffer_of.get(ordered[0], ""))
    if buffer is None:
        raise ValueError(f"{op.type}: {ordered[0]!r}: expected a view of a buffer that startup makes, got none")
    whole = backend.describe(buffer, op.type)
    first, count = (described[ordered[0]].address - whole.address) // item, sum(lengths)
    if first < 0 or first + count > whole.size:
        raise ValueError(f"{op.type}: {ordered[0]!r}: expected a view of the buffer, got an array elsewhere")
    return backend.part(buffer, first, count)


def _padded(attrs: Mapping[str, Any], size: int, dtype: str, chunk: int) -> int:
    """The length of a tensor in a buffer, with padding, in elements."""
    override = attrs.get("size_of_dtype", -1)
    align = attrs.get("align_size", -1)
    align = (chunk if align == -1 else align) if attrs.get("use_align", True) else None
    return cpu.layout([size], ITEM_SIZES[dtype] if override == -1 else override, align).total


def _all_gather(bound: Bound, op: Op) -> Callable[[], Any]:
    (source,), (target,) = op.inputs["x"], op.outputs["out"]
    var = bound.program.vars[source]

    def run() -> None:
        (segment,) = bound.rows[source]
        bound.rows[target] = rows.gathered(bound.backend, bound.comm, var, segment)

    return run


def _scatter_add(bound: Bound, op: Op) -> Callable[[], Any]:
    pairs = list(zip(op.inputs["x"], op.outputs["out"], strict=True))

    def run() -> None:
        for source, target in pairs:
            bound.backend.add_rows(bound.rows[source], bound.arrays[target])

    return run


def _scale(bound: Bound, op: Op) -> Callable[[], Any]:
    arrays = [bound.arrays[name] for name in op.inputs["x"]]
    return bound.backend.cast(arrays, arrays, op.attrs["scale"])


def _cast(bound: Bound, op: Op) -> Callable[[], Any]:
    sources, targets = ([bound.arrays[name] for name in names] for names in (op.inputs["x"], op.outputs["out"]))
    return bound.backend.cast(sources, targets)


def _coalesce(bound: Bound, op: Op) -> Callable[[], Any]:
    """Make the buffer, and let the variables be views of it."""
    vars, attrs = bound.program.vars, op.attrs
    copied = bool(attrs.get("copy_data"))

    def run() -> None:
        inputs = [bound.arrays[name] if copied else None for name in op.inputs["input"]]
        coalesced = bound.backend.coalesce(
            inputs, dtype=vars[op.outputs["fused_output"][0]].dtype, copy_data=copied,
            shapes=[vars[name].shape for name in op.inputs["input"]],
            **{name: attrs[name] for name in kinds.LAYOUT if name in attrs},
        )  # fmt: skip
        bound.put(op.outputs["fused_output"][0], coalesced.buffer)
        for name, view in zip(op.outputs["output"], coalesced.views, strict=True):
            bound.put(name, view)

    return run


RUNNERS: dict[str, Callable[[Bound, Op], Callable[[], Any]]] = {
    "backward": Backward,
    "all_reduce": _collective,
    "reduce": _collective,
    "broadcast": _collective,
    "batch": _batch,
    "all_gather": _all_gather,
    "scatter_add": _scatter_add,
    "scale": _scale,
    "cast": _cast,
    "coalesce_tensor": _coalesce,
}
