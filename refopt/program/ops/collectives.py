"""Collectives on dense tensors: on one, or on the range of a buffer in which several are adjacent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from refopt.checks.arguments import is_whole, whole
from refopt.checks.dtypes import ITEM_SIZES
from refopt.program.graph import Graph
from refopt.program.model import Op
from refopt.program.ops.checks import check_alike, check_ranks, variables
from refopt.program.ops.coalescing import LAYOUT, padded
from refopt.program.ops.context import Context
from refopt.program.ops.registry import of_way, op
from refopt.program.ops.sparse import all_rows, check_rows

BATCH = "batch"
BATCHED = "reduce", "broadcast"  # types that can be batched
OWN = "kind", "roots", "counts"  # attributes of a batch that its calls lack


def _check_collective(graph: Graph, op: Op) -> None:
    check_alike(graph, op, "x", "out", in_place=True)
    check_ranks(op)
    dtypes = {var.dtype for var in variables(graph, op.inputs["x"])}
    if len(dtypes) > 1:
        raise TypeError(f"x: expected one dtype, got {', '.join(sorted(dtypes))}")
    if op.type != "all_reduce":
        whole("root", op.attrs.get("root"), 0, op.attrs["ranks"] - 1)


@op("broadcast", "x", "out", check=_check_collective, way="network")
@op("reduce", "x", "out", check=_check_collective, way="network")
@op("all_reduce", "x", "out", check=_check_collective, way="network")
def collective(context: Context, op: Op) -> Callable[[], Any]:
    """`x` becomes its sum over the ranks, on all or, by ``reduce``, on rank `root` alone; or a copy of `root`'s.

    Several variables must be adjacent in a buffer; one call covers their range.
    """
    names = op.inputs["x"]
    array = context.arrays[names[0]] if len(names) == 1 else _range(context, op, names)
    root = [op.attrs["root"]] if "root" in op.attrs else []
    run: Callable[[], Any] = context.along(op).prepared(op.type, array, *root)
    return run


def _check_scattered(graph: Graph, op: Op) -> None:
    check_ranks(op)
    forth = 1 if op.type == "reduce_scatter" else -1
    slots, (buffers, parts) = ("x", "out")[::forth], (op.inputs["x"], op.outputs["out"])[::forth]
    if len(buffers) != 1 or buffers[0] not in graph.views:
        raise ValueError(f"{slots[0]}: expected one buffer that startup makes, got {', '.join(buffers) or 'none'}")
    if graph.makers[buffers[0]].attrs.get("parts") != op.attrs["ranks"]:
        raise ValueError(f"{slots[0]}: expected a buffer of {op.attrs['ranks']} parts, got {buffers[0]!r}")
    cells = {*graph.memory(buffers[0])}
    for k, name in enumerate(parts):
        if not cells.issuperset(graph.memory(name)):
            raise ValueError(f"{slots[1]}[{k}]: expected what is in {buffers[0]!r}, got {name!r}")


@op("reduce_scatter", "x", "out", check=_check_scattered, way="network")
def scattered(context: Context, op: Op) -> Callable[[], Any]:
    """`out`, the variables in a rank's part of the buffer `x`, become their sums over the ranks; the rest stays."""
    buffer, part = _own_part(context, op, op.inputs["x"][0], op.outputs["out"])
    run: Callable[[], Any] = context.along(op).prepared(op.type, buffer, part)
    return run


def _check_gathered(graph: Graph, op: Op) -> None:
    if any(graph.vars[name].sparse for name in op.outputs["out"]):
        check_rows(graph, op)
    else:
        _check_scattered(graph, op)


@op("all_gather", "x", "out", check=_check_gathered, way="network", dense=False)
def gathered(context: Context, op: Op) -> Callable[[], Any]:
    """The buffer `out` receives each rank's part, `x`; a sparse gradient becomes the rows of all ranks, in rank order.
    """
    (whole,) = op.outputs["out"]
    if context.program.vars[whole].sparse:
        return all_rows(context, op)
    buffer, part = _own_part(context, op, whole, op.inputs["x"])
    run: Callable[[], Any] = context.along(op).prepared(op.type, part, buffer)
    return run


def _own_part(context: Context, op: Op, name: str, members: tuple[str, ...]) -> tuple[Any, Any]:
    """A buffer, and this rank's part of it; raises if a variable is not in that part."""
    backend, buffer = context.backend, context.arrays[name]
    size = buffer.size // op.attrs["ranks"]
    rank = context.along(op).rank
    part = backend.part(buffer, rank * size, size)
    start, item = backend.describe(part, op.type).address, ITEM_SIZES[context.program.vars[name].dtype]
    for member in members:
        described = backend.describe(context.arrays[member], f"{op.type}: {member!r}")
        first = (described.address - start) // item
        if not 0 <= first <= size - described.size:
            expected = f"expected it among the {size} elements of rank {rank} in {name!r}"
            raise ValueError(f"{op.type}: {member!r}: {expected}, got it at element {first}, as other ranks have it")
    return buffer, part


def _check_batch(graph: Graph, op: Op) -> None:
    check_alike(graph, op, "x", "out", in_place=True)
    check_ranks(op)
    _check_calls(op)
    seen: set[str] = set()
    for k, name in enumerate(op.inputs["x"]):
        if not seen.isdisjoint(graph.memory(name)):
            raise ValueError(f"x[{k}]: expected variables that do not overlap, got {name!r} again")
        seen.update(graph.memory(name))
    for each in calls(op):
        _check_collective(graph, each)


@op(BATCH, "x", "out", check=_check_batch, way="network")
def batch(context: Context, op: Op) -> Callable[[], Any]:
    """Calls of one `kind`, ``"reduce"`` or ``"broadcast"``, made at once, so that links are used in both directions.

    There is one call for each of `roots`; each takes the next variables of `x`, as many as `counts` says.
    """
    bound = [collective(context, each) for each in calls(op)]

    def run() -> None:
        with context.along(op).batch():
            for call in bound:
                call()

    return run


def batch_of(ops: Sequence[Op]) -> Op:
    """Collectives of one kind as one op; they differ in their roots and variables only.

    The layout is taken from the op with the most variables.
    """
    first = max(ops, key=lambda op: len(op.inputs["x"]))
    names = [name for op in ops for name in op.inputs["x"]]
    attrs = {key: value for key, value in first.attrs.items() if key != "root"}
    attrs |= {
        "kind": first.type, "roots": tuple(op.attrs["root"] for op in ops),
        "counts": tuple(len(op.inputs["x"]) for op in ops),
    }
    return first.replace(type=BATCH, inputs={"x": names}, outputs={"out": names}, attrs=attrs)


def calls(op: Op) -> list[Op]:
    """The single collectives of a batch, in order; any other op unchanged."""
    if op.type != BATCH:
        return [op]
    attrs = {key: value for key, value in op.attrs.items() if key not in OWN}
    stops = accumulate(op.attrs["counts"], initial=0)
    return [
        op.replace(
            type=op.attrs["kind"], attrs={**attrs, "root": root},
            inputs={"x": op.inputs["x"][start:stop]}, outputs={"out": op.outputs["out"][start:stop]},
        )
        for root, (start, stop) in zip(op.attrs["roots"], pairwise(stops), strict=True)
    ]


def _check_calls(op: Op) -> None:
    """Raise if the attributes of a batch do not define its calls; the error names the attribute and its index."""
    if op.attrs.get("kind") not in BATCHED:
        raise ValueError(f"kind: expected one of {', '.join(BATCHED)}, got {op.attrs.get('kind')!r}")
    roots, counts = (_integers(op, key) for key in ("roots", "counts"))
    for k, root in enumerate(roots):
        if root in roots[:k]:
            raise ValueError(f"roots[{k}]: expected each root once, got {root} again")
        if not 0 <= root < op.attrs["ranks"]:
            raise ValueError(f"roots[{k}]: expected a rank from 0 to {op.attrs['ranks'] - 1}, got {root}")
    if len(counts) != len(roots):
        raise ValueError(f"counts: expected one for each of {len(roots)} roots, got {len(counts)}")
    for k, count in enumerate(counts):
        if count < 1:
            raise ValueError(f"counts[{k}]: expected at least one variable, got {count}")
    if sum(counts) != len(op.inputs["x"]):
        raise ValueError(f"counts: expected numbers that add up to {len(op.inputs['x'])} variables, got {sum(counts)}")


def _integers(op: Op, key: str) -> tuple[int, ...]:
    values = op.attrs.get(key)
    if not isinstance(values, tuple) or not values or not all(map(is_whole, values)):
        raise TypeError(f"{key}: expected a tuple of at least one integer, got {values!r}")
    return values


def sequence(graph: Graph, chunk: int, axis: str | None = None) -> list[str]:
    """The collectives of a program along an axis as text, equal on ranks that fit together.

    ``chunk`` is the alignment of buffers, which determines how much padding is sent.
    """
    collectives = of_way("network")
    return [
        f"{part} {text}"
        for part in ("startup", "main")
        for op in getattr(graph, part)
        if op.type in collectives and op.attrs.get("axis") == axis
        for text in _in_words(graph, op, chunk)
    ]


def _in_words(graph: Graph, op: Op, chunk: int) -> list[str]:
    """The calls of a collective as text."""
    parts, texts = calls(op), []
    for k, each in enumerate(parts):
        buffer = next((x for x in (*each.reads, *each.writes) if x in graph.views), None)
        among, attrs = (graph.views[buffer], graph.makers[buffer].attrs) if buffer else (each.inputs["x"], each.attrs)
        names = ", ".join(str(graph.vars[name]) for name in _in_memory(graph, among))
        root = f" root {each.attrs['root']}" if "root" in each.attrs else ""
        layout = "".join(f" {key}={attrs[key]}" for key in LAYOUT if key in attrs)
        aligned = f" aligned to {chunk}{layout}" if len(among) > 1 else ""
        place = f", {k + 1} of {len(parts)} in a batch" if op.type == BATCH else ""
        turn = f" in each {each.attrs['every']} steps" if "every" in each.attrs else ""
        texts.append(f"{each.type}{root}{turn} of {names}{aligned}{place}")
    return texts


def _in_memory(graph: Graph, names: tuple[str, ...]) -> list[str]:
    """Variables in the order of their buffer, if they are in one."""
    buffer = graph.buffer_of.get(names[0])
    if buffer is None:
        return list(names)
    end = len(graph.views[buffer])
    return sorted(names, key=lambda name: graph.place_of[name] if graph.buffer_of.get(name) == buffer else end)


def _range(context: Context, op: Op, names: tuple[str, ...]) -> Any:
    """The range of a buffer from the first of these tensors to the padding of the last.

    Raises:
        ValueError: naming two tensors that are not adjacent.
    """
    backend, graph = context.backend, context.program
    described = {name: backend.describe(context.arrays[name], f"{op.type}: {name!r}") for name in names}
    ordered = sorted(names, key=lambda name: described[name].address)
    dtype = graph.vars[names[0]].dtype
    item = ITEM_SIZES[dtype]
    lengths = [padded(op.attrs, described[name].size, dtype, backend.chunk) for name in ordered]
    for k in range(1, len(ordered)):
        expected = described[ordered[k - 1]].address + lengths[k - 1] * item
        if described[ordered[k]].address != expected:
            raise ValueError(
                f"{op.type}: {ordered[k]!r}: expected it at address {expected:#x}, after {ordered[k - 1]!r} with its "
                f"padding, got {described[ordered[k]].address:#x}"
            )
    first_whole = graph.whole_of.get(ordered[0], ordered[0])
    buffer = context.arrays.get(graph.buffer_of.get(first_whole, ""))
    if buffer is None:
        raise ValueError(f"{op.type}: {ordered[0]!r}: expected a view of a buffer that startup makes, got none")
    all_of_it = backend.describe(buffer, op.type)
    first, count = (described[ordered[0]].address - all_of_it.address) // item, sum(lengths)
    if first < 0 or first + count > all_of_it.size:
        raise ValueError(f"{op.type}: {ordered[0]!r}: expected a view of the buffer, got an array elsewhere")
    return backend.part(buffer, first, count)
