"""Collectives of different roots that are made at once, as one op."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from refopt.checks.arguments import is_whole
from refopt.program.ops import Op

BATCH = "batch"
KINDS = "reduce", "broadcast"  # that a batch may be of
OWN = "kind", "roots", "counts"  # attributes that a batch has, and its calls have not


def batch(ops: Sequence[Op]) -> Op:
    """Some collectives of one kind as one op; attributes other than the root, and layouts, are those of all.

    Args:
        ops: at least one, each of another root, alike beside that and what they work on. A layout is that of the
            ops of several variables.
    """
    first = max(ops, key=lambda op: len(op.inputs["x"]))
    names = [name for op in ops for name in op.inputs["x"]]
    attrs = {key: value for key, value in first.attrs.items() if key != "root"}
    attrs |= {
        "kind": first.type, "roots": tuple(op.attrs["root"] for op in ops),
        "counts": tuple(len(op.inputs["x"]) for op in ops),
    }  # fmt: skip
    return first.replace(type=BATCH, inputs={"x": names}, outputs={"out": names}, attrs=attrs)


def calls(op: Op) -> list[Op]:
    """The single collectives of a batch, in order; any other op as it is."""
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
    ]  # fmt: skip


def check(op: Op) -> None:
    """Raise if the attributes of a batch do not say which calls it is; the error names the attribute and its index."""
    if op.attrs.get("kind") not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {op.attrs.get('kind')!r}")
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
