"""Sharding by element: gradients and parameters are in buffers, and each rank updates its part of each.

What cannot be cut goes whole to owners.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from refopt.catalog import KNOWN
from refopt.checks.arguments import whole
from refopt.program.model import Op
from refopt.program.ops.coalescing import padded, part_size
from refopt.program.ops.updates import SHARED, norms_of, routine_of, uncut
from refopt.program.passes import dependencies
from refopt.program.passes.collectives import checked
from refopt.program.passes.dependencies import title
from refopt.program.passes.gradients import params_of
from refopt.program.passes.grouping import check_limit, fuse_size
from refopt.program.passes.optimizer import fuse_optimizer
from refopt.program.passes.owners import along
from refopt.program.passes.parts import PAIRS, Bucket, Owned, Reduction, Rewriting, Tensor, layout_of
from refopt.program.passes.result import Result
from refopt.program.passes.sharding import declined
from refopt.program.passes.shares import largest_first
from refopt.program.program import Program, expect_program

NOTHING = "no gradient is reduced separately and updated at once"


def shard_elements(program: Program, rank: int, degree: int, limit: float = 32.0, axis: str | None = None) -> Result:
    """The program of one rank of several that divide the optimizer among them, element by element.

    Gradients are put into buffers, as by `refopt.program.passes.coalesce_gradients`, and so are parameters, with each
    tensor padded to a multiple of 1,024 elements, and each buffer to a multiple of 1,024 per rank. A
    ``reduce_scatter`` leaves a rank the sums in its part of the buffer, which it averages, checks and updates; then an
    ``all_gather`` gives all ranks the parameters. A tensor across the border of two parts is cut there, and a rank
    keeps the states of its own elements, of those in 8 bits whole groups: ``moment.shard1`` on the second rank.

    Gradients that are summed in fp16 before they are cast, after each micro-step, as `refopt.program.amp_program` does
    with ``reduced="float16"``, are cast and added where their sums are, so a rank has only its part of the fp32
    gradients.

    So all ranks have equally many elements, to within 1,024 per buffer, whatever the tensors, and each keeps
    1 / degree of the states, and of the masters if the parameters are copies of these. Traffic equals that of an
    all-reduce. No bit changes (numerics, N11): elements are updated independently, and whether a gradient was inf or
    NaN, and the norm of all gradients, are added up over the ranks.

    Updates of LAMB, LARS and NovoGrad are merged first, and need norms of tensors. Of those that are cut, each rank
    sums the squares of its tiles; one ``all_reduce`` of 4 bytes for each tile and norm, of fp64 parameters one more of
    8, adds them up, and ranks join them (N6).

    Matrices of Muon, and tensors with stochastic rounding by element number, are not cut. Each has an owner, the
    largest first the rank with the least so far: a ``reduce`` sends it the sum of gradients, and after the update a
    ``broadcast`` gives all ranks the parameter. Some tensors are left to all ranks, with reasons: empty ones; those
    whose gradients are sparse, or already in buffers.

    Args:
        program: a program for ``degree`` ranks, which may have masters and casts in its updates: after
            `refopt.program.passes.optimize_cast` and `refopt.program.passes.fold_casts`, fp16 copies are gathered and
            not fp32 parameters. Apply `refopt.program.passes.fuse_optimizer` afterwards.
        rank: this rank's number.
        degree: the number of ranks.
        limit: the largest size of a buffer's gradients, in megabytes of 2**20 bytes.
        axis: the axis of a `refopt.comm.Mesh` that the step is divided along; see `refopt.program.passes.over_axes`.
            ``rank`` and ``degree`` are along it.

    Source: stages 1 and 2 of ZeRO (Rajbhandari et al., 2020), in flat buffers as in Megatron's distributed optimizer;
    norms as in Paddle's ``distributed_fused_lamb``, matrices as in its ``MuonShardingOptimizer``.
    """
    expect_program("shard_elements", program)
    degree = whole("shard_elements: degree", degree, 1)
    rank = whole("shard_elements: rank", rank, 0, degree - 1)
    check_limit("shard_elements: limit", limit)
    reason = declined("shard_elements", program, degree, axis)
    if reason:
        return Result(program, False, (reason,))
    ready = _norms_together(program)
    search = _Search(ready, degree, limit, axis)
    if not search.buckets and not search.owned:
        return Result(program, False, (*search.reasons, NOTHING))
    rewriting = Rewriting(ready, search.buckets, search.owned, rank, along(degree, axis))
    return Result(rewriting.program(), True, tuple(search.reasons))


def _norms_together(program: Program) -> Program:
    """A program whose updates that need norms are merged, and follow each other, so that ranks join all norms at once.
    """
    for kind in dict.fromkeys(op.type for op in program.main):
        if kind in KNOWN and KNOWN[kind].norms:
            program = fuse_optimizer(program, kind, "merged").program
    places = [i for i, op in enumerate(program.main) if norms_of(op)]
    ops = [program.main[i] for i in places]
    if len(places) < 2 or dependencies.among(program, ops) or dependencies.between(program, places):
        return program
    return program.replace(main=dependencies.rewritten(program, [(places, ops)]))


class _Search:
    """Finds tensors that can be cut, or given to an owner."""

    def __init__(self, program: Program, degree: int, limit: float, axis: str | None) -> None:
        self._program, self._degree, self._axis = program, degree, axis
        self.buckets: list[Bucket] = []
        self.reasons: list[str] = []
        sums = dependencies.sums_by_axis(program)
        self._sums, self._others = sums.pop(axis), tuple(sums.values())
        self._scales = dependencies.singles(program, "scale", "communicate")
        self._sources, self._made = self._followed()
        found = sorted(self._tensors(), key=lambda each: each.reduced)
        tensors = [each for each in found if not _whole(program.main[each.updated])]
        kinds = [tuple(program.vars[name].dtype for name in (*each.sources, each.param)) for each in tensors]
        for kind in dict.fromkeys(kinds):
            own = [each for each, other in zip(tensors, kinds, strict=True) if other == kind]
            names, shapes = [each.sources[0] for each in own], [program.vars[each.grad].shape for each in own]
            for group in fuse_size(names, shapes, [kind[0]] * len(own), limit=limit).groups:
                self._add([own[k] for k in group])
        self.owned = self._owned([each for each in found if _whole(program.main[each.updated])])

    def _followed(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """By parameter, which of its gradients are summed over ranks, and what is computed from the sums."""
        program, params = self._program, params_of(self._program)
        sources: dict[str, list[str]] = {}
        made: dict[str, list[str]] = {}
        summed: set[str] = set()
        for op in program.main:
            if op.type == "all_reduce" and op.attrs.get("axis") == self._axis:
                summed.update(op.reads)
                if len(op.reads) == 1 and op.reads[0] in params:
                    sources.setdefault(params[op.reads[0]], []).append(op.reads[0])
            elif op.type in PAIRS:
                for x, out in zip(op.inputs["x"], op.outputs["out"], strict=True):
                    if x in summed and out in params and out not in summed:
                        summed.add(out)
                        made.setdefault(params[out], []).append(out)
        return sources, made

    def _add(self, tensors: list[Tensor]) -> None:
        """Make a bucket of tensors, unless something is in between."""
        reductions, reason = [], ""
        for names in zip(*(each.sources for each in tensors), strict=True):
            places = [self._sums[name][0] for name in names]
            rows = dependencies.rows_along(self._others, names, places)
            further = tuple(row for row in rows if len(row) == len(names))  # what is not of all is needed, and declined
            averages, why = checked(self._program, places, self._scales, "sum", chain(*further))
            reductions.append(Reduction(names, tuple(places), further, tuple(averages)))
            reason = reason or why
        last = max(each.updated for each in tensors)
        reason = reason or self._needed(tensors, last, {place for each in reductions for place in each.members})
        if reason:
            self.reasons.append(f"{tensors[0].grad!r} to {tensors[-1].grad!r}: {reason}")
        else:
            self.buckets.append(Bucket(tuple(tensors), tuple(reductions), tuple(self._spans(tensors))))

    def _owned(self, tensors: list[Tensor]) -> list[Owned]:
        """The tensors that an owner can have, each with its owner."""
        able = []
        for each in tensors:
            sums = {i for name in each.sources for sums in (self._sums, *self._others) for i in sums.get(name, ())}
            if reason := self._needed([each], len(self._program.main), sums):
                self.reasons.append(f"{each.param!r} is left to all ranks: {reason}")
            else:
                able.append(each)
        owners = largest_first([math.prod(self._program.vars[each.param].shape) for each in able], self._degree)
        return [
            Owned(each, tuple(self._sums[name][0] for name in each.sources), rank)
            for each, rank in zip(able, owners, strict=True)
        ]

    def _tensors(self) -> Iterator[Tensor]:
        """The tensors that ranks can divide; for others, a reason is added."""
        for i, op in enumerate(self._program.main):
            for k, param in enumerate(op.inputs["params"] if routine_of(op) else ()):
                reason = self._why_not(op, k, i)
                if reason:
                    self.reasons.append(f"{param!r} is left to all ranks: {reason}")
                else:
                    sources, made = tuple(self._sources[param]), tuple(self._made.get(param, ()))
                    yield Tensor(param, op.inputs["grads"][k], sources, made, self._sums[sources[0]][0], i)

    def _why_not(self, op: Op, k: int, place: int) -> str:
        """Why ranks cannot divide the work on a tensor of an update. Empty if they can."""
        program, routine = self._program, routine_of(op)
        assert routine is not None
        param, grad = op.inputs["params"][k], op.inputs["grads"][k]
        sources, made = self._sources.get(param, []), self._made.get(param, [])
        if not sources or grad not in (*sources, *made):
            return f"{grad!r} has no all_reduce of its own"
        if twice := next((name for name in sources if len(self._sums[name]) > 1 or name in made), ""):
            return f"{twice!r} is reduced twice"
        if math.prod(program.vars[param].shape) == 0:
            return "it has no elements"
        states = [names[k] for slot, names in op.inputs.items()
                  if slot not in (*SHARED, *routine.scalars, "params", "grads")]
        for name in (param, *sources, *made, *states):
            if name in program.buffer_of or name in program.parts or name in program.whole_of:
                return f"{name!r} is already in a buffer, or cut"
        for name in states:
            if program.vars[name].part is not None or {*chain(*program.users[name])} != {place}:
                return f"{name!r} is not memory that only its update uses from step to step"
        for name in (*sources, *made):
            if program.vars[name].persistable:
                return f"{name!r} lives from step to step"
        return "" if program.writers[param] == 1 else "other ops change it, too"

    def _needed(self, tensors: Sequence[Tensor], last: int, members: set[int]) -> str:
        """Which op needs all of a tensor, or needs its parameter before it is sent. Empty if none does."""
        program = self._program
        for each in tensors:
            for i in program.users[each.param][0]:
                op = program.main[i]
                if each.updated < i and (i <= last or op.role == "optimize"):
                    return f"{title(op)} needs {each.param!r} after its update; apply fold_casts first"
            own = {*each.sources, *each.made}
            for name in (*each.sources, *each.made):
                for i in {*chain(*program.users[name])} - {each.updated} - members:
                    if name in each.made or i > self._sums[name][0]:
                        op = program.main[i]
                        if op.type != "check_gradients" and not _of_pairs(op, name, own):
                            if name in each.made and i < min(self._sums[x][0] for x in each.sources):
                                return f"{name!r} is narrowed; use amp_program(reduced='float16'), not narrow_sums"
                            return f"{title(op)} needs {name!r} after its reduction"
        return ""

    def _spans(self, tensors: Sequence[Tensor]) -> Iterator[dict[int, tuple[int, int]]]:
        """Each rank's part of each tensor."""
        vars = [self._program.vars[each.grad] for each in tensors]
        lengths = [padded(layout_of(var.dtype), math.prod(var.shape), var.dtype, 0) for var in vars]
        part, start = part_size(sum(lengths), self._degree), 0
        for var, length in zip(vars, lengths, strict=True):
            stop = start + math.prod(var.shape)
            borders = [start, *range((start // part + 1) * part, stop, part), stop]
            yield {first // part: (first - start, end - first) for first, end in pairwise(borders)}
            start += length


def _whole(op: Op) -> bool:
    """Whether an update needs more of its tensors than norms and elements."""
    return not norms_of(op) and uncut(op) != ""


def _of_pairs(op: Op, name: str, own: set[str]) -> bool:
    """Whether an op treats a variable elementwise, together with others that are cut alike."""
    if op.type not in PAIRS:
        return False
    pairs = zip(op.inputs["x"], op.outputs["out"], strict=True)
    return all(own.issuperset(pair) for pair in pairs if name in pair)
