"""Updating the rows of tables that sparse gradients name, and no others."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from refopt.checks.arguments import chosen
from refopt.cpu.lazy import COUNTS
from refopt.program.model import Op, Var
from refopt.program.ops.updates import check_update, routine_of
from refopt.program.passes.averages import FACTOR, factor_of, unfolded
from refopt.program.passes.dependencies import Move, between, rewritten, title
from refopt.program.passes.result import Result, changed
from refopt.program.program import Program, expect_program


def update_rows(program: Program, count: str = "global") -> Result:
    """Let updates read sparse gradients, and step only the rows that these name (numerics, N22).

    A ``scatter_add`` and the update of the dense gradient that it makes become an update of the rows of all ranks, in
    rank order, by `refopt.cpu.merged_lazy`. It changes what is computed: other rows, and their states, keep every bit.
    An average over ranks becomes the ``grad_factor``, as by `fold_averages`. `fuse_optimizer` then merges tables.

    Args:
        count: what powers of beta count: ``"global"``, the table's steps; or ``"row"``, each row's.

    Source: Paddle's ``lazy_mode``.
    """
    expect_program("update_rows", program)
    chosen("update_rows: count", count, COUNTS)
    search = _Search(program, count)
    for i, op in enumerate(program.main):
        if op.type == "scatter_add" and (reason := search.add(i, op)):
            search.reasons.append(f"{title(op)}: {reason}")
    made = program.replace(vars=search.vars, main=rewritten(program, search.moves))
    return changed(program, made, search.reasons, "no sparse gradient is made dense for an update")


class _Search:
    """Collects the changes."""

    def __init__(self, program: Program, count: str) -> None:
        self.moves: list[Move] = []
        self.reasons: list[str] = []
        self.vars = dict(program.vars)
        self._program, self._count = program, count
        self._begun = {name for op in program.startup for name in (*op.reads, *op.writes)}
        self._begun |= {var.initial for var in program.vars.values() if isinstance(var.initial, str)}

    def add(self, place: int, op: Op) -> str:
        """Replace a ``scatter_add`` and the update of its result, or return why not."""
        program, dense = self._program, op.writes[0]
        *averages, last = sorted({place, *chain(*program.users.get(dense, ()))})[1:] or [place]
        update = program.main[last]
        routine = routine_of(update)
        if len(op.writes) > 1 or op.attrs or dense in self._begun or program.vars[dense].persistable or last == place:
            return "expected one gradient, made in each step and read by an update"
        if routine is None or update.inputs["grads"] != (dense,):
            return f"{title(update)} needs {dense!r}, and is not an update of it alone"
        inputs, new = {**update.inputs, "grads": op.reads}, dict[str, Var]()
        for n, other in enumerate(program.main[k] for k in averages):
            if n or other.type != "scale" or other.writes != (dense,):
                return f"{title(other)} needs {dense!r}, too"
            if reason := unfolded(program, last, {averages[n]}, exact=False):
                return reason
            factor = factor_of(program, update, other)
            new[factor.name], inputs[FACTOR] = factor, (factor.name,)
        for slot in routine.scalars if self._count == "row" else ():
            (name,), rows = update.inputs[slot], program.vars[dense].shape[:1]
            var = new[name] = replace(program.vars[name], shape=rows)
            alone = len({*chain(*program.users[name])}) == 1 and name not in self._begun
            if not alone or isinstance(var.initial, str) or not var.persistable:
                return f"{name!r} is not of this update alone, and cannot count rows"
        made = update.replace(inputs=inputs, attrs={"count": self._count, **update.attrs})
        try:
            check_update(Program({name: new.get(name) or program.vars[name] for name in made.reads}), made, routine)
        except (TypeError, ValueError) as error:
            return str(error)
        if reason := between(program, [place, *averages, last]):
            return reason
        self.moves.append(([place, *averages, last], [made]))
        self.vars |= new
        del self.vars[dense]
        return ""
