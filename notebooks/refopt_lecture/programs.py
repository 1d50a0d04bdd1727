"""What the notebooks on programs share: arrays behind the names, tables, and pictures of ops, memory and streams."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown
from matplotlib.axes import Axes

from refopt import catalog
from refopt.comm import local
from refopt.program import UNKNOWN, Bound, Op, Program, Var, bind

# A colour for each kind of work, the same in all of these notebooks.
COLORS = {
    "backward": "#56B4E9", "forward": "#56B4E9", "sum": "#E69F00", "scale": "#F0E442", "cast": "#F0E442",
    "update": "#0072B2", "broadcast": "#CC79A7", "copy out": "#009E73", "copy in": "#D55E00", "other": "#BBBBBB",
}
DARK = {"#0072B2", "#009E73", "#D55E00"}  # on which letters are white
SUMS = {"all_reduce", "reduce", "reduce_scatter", "send", "fetch", "exchange"}


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markdown:
    """A table; columns of numbers are aligned to the right."""
    rows = [[str(cell) for cell in row] for row in rows]
    right = [all(row[i][:1].isdigit() or row[i][:1] in "-" for row in rows) for i in range(len(heads))]
    lines = [heads, ["---:" if is_number else ":---" for is_number in right], *rows]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def values(var: Var, *seed: int) -> np.ndarray:
    """Random values for a variable: the same ones for the same name and seed."""
    random = np.random.default_rng([*seed, *var.name.encode()])
    return random.standard_normal(var.shape, np.float32).astype(var.dtype)


def started(program: Program, world: Any = None, change: Callable = lambda g: g, **how: Any) -> Bound:
    """A program bound to random parameters, alike on all ranks, and to gradients that differ by rank and by step."""
    rank = world.rank if world else 0
    ours = [v for v in program.vars.values() if v.persistable and v.initial is None and v.shape != UNKNOWN]
    gradients = {"gradients": lambda name, step: change(values(program.vars[name], 1 + rank, step))}
    bound = bind(program, {v.name: values(v) for v in ours}, comm=world, **{**gradients, **how})
    bound.startup()
    return bound


def lasting(bound: Bound, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """What is kept from step to step: parameters, moments, powers; or the variables of the names."""
    kept = (v.name for v in bound.program.vars.values() if v.persistable and v.shape != UNKNOWN)
    return {name: bound.read(name) for name in (kept if names is None else names)}


def outcome(program: Program, ranks: int, steps: int = 2, names: Iterable[str] | None = None) -> list[list[np.ndarray]]:
    """On each rank, what is kept after some steps, in the order of the names."""

    def rank(world: Any) -> list[np.ndarray]:
        bound = started(program, world)
        for _ in range(steps):
            bound.step()
        return list(lasting(bound, names).values())

    return [rank(None)] if ranks == 1 else local.run(rank, ranks)


def work(kind: str) -> str:
    """What a type of ops does, a key of `COLORS`."""
    if kind in SUMS:
        return "sum"
    if kind.removeprefix("merged_") in catalog.ROUTINES:
        return "update"
    return "broadcast" if kind == "all_gather" else kind if kind in COLORS else "other"


def score(ax: Axes, program: Program, title: str, labels: Callable[[Op], str] | None = None) -> None:
    """Draw the ops of a step: a box each, from left to right as in the list, on the line of its type."""
    kinds = list(dict.fromkeys(op.type for op in program.main))
    for i, op in enumerate(program.main):
        color = COLORS[work(op.type)]
        edge = {"edgecolor": "black", "lw": 0.5} if len(program.main) < 100 else {"edgecolor": color, "lw": 1}
        ax.broken_barh([(i, 1)], (kinds.index(op.type) - 0.46, 0.92), facecolor=color, **edge)
        if labels:
            _write(ax, i + 0.5, kinds.index(op.type), labels(op), color, rotation=90)
    ax.set_yticks(range(len(kinds)), kinds)
    ax.set(title=title, xlim=(0, len(program.main)), ylim=(len(kinds) - 0.4, -0.6))


def _write(ax: Axes, x: float, y: float, words: str, color: str, **how: Any) -> None:
    ax.text(x, y, words, color="white" if color in DARK else "black", fontsize=9, ha="center", va="center", **how)


def parameters_of(op: Op) -> str:
    """The parameters that an op of a small program is about, one below the other."""
    names = [name.partition("@")[0] for name in (*op.writes, *op.reads) if "moment" not in name and "pow" not in name]
    return "\n".join(dict.fromkeys(name for name in names if name))


def lanes(ax: Axes, spans: Iterable[tuple[str, str, str, float, float]], rows: Sequence[str], title: str) -> None:
    """Draw what streams do in time: a box for each span of (stream, kind of work, words, start, stop)."""
    for stream, kind, words, start, stop in spans:
        y = rows.index(stream)
        ax.broken_barh([(start, stop - start)], (y - 0.38, 0.76), facecolor=COLORS[kind], edgecolor="black", lw=0.5)
        if words:
            _write(ax, (start + stop) / 2, y, words, COLORS[kind])
    ax.set_yticks(range(len(rows)), rows)
    ax.set(title=title, ylim=(len(rows) - 0.4, -0.6))


def legend_of(ax: Axes, kinds: Sequence[str], words: Mapping[str, str] | None = None, **where: Any) -> None:
    """A legend of the colours of kinds of work."""
    boxes = [plt.Rectangle((0, 0), 1, 1, facecolor=COLORS[kind], edgecolor="black", lw=0.5) for kind in kinds]
    ax.legend(boxes, [(words or {}).get(kind, kind) for kind in kinds], **where)
