"""Each element is updated by one rank: gradients and parameters in buffers, of which each rank has a part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise

from refopt.checks.arguments import whole
from refopt.program.model import Op
from refopt.program.ops.coalescing import padded, part_size
from refopt.program.ops.updates import SHARED, routine_of
from refopt.program.passes import dependencies
from refopt.program.passes.collectives import checked
from refopt.program.passes.dependencies import title
from refopt.program.passes.grouping import check_limit, fuse_size
from refopt.program.passes.owners import along
from refopt.program.passes.parts import Bucket, Rewriting, Tensor, layout_of
from refopt.program.passes.result import Result
from refopt.program.passes.sharding import declined
from refopt.program.program import Program, expect_program

NOTHING = "no gradient of an elementwise routine is reduced by itself and updated at once"


def shard_elements(
    program: Program, rank: int, degree: int, limit: float = 32.0, axis: str | None = None
) -> Result:  # fmt: skip
    """The program of one rank of several that share out the optimizer, element by element.

    Gradients lie in buffers, as `refopt.program.passes.coalesce_gradients` would have them, and parameters likewise,
    each tensor padded to a multiple of 1,024 elements, and each buffer to a multiple of 1,024 for every rank. A
    ``reduce_scatter`` leaves a rank the sums in its part of the buffer, which it averages, checks and updates; then an
    ``all_gather`` gives all ranks the parameters. A tensor across the border of two parts is cut there, and of its
    states a rank has those of its elements: ``moment.shard1`` of the second rank.

    So every rank has as many elements, to 1,024 of them in each buffer, whatever the tensors are, and keeps 1 / degree
    of the states, and of the masters, where the parameters are copies of these. What is sent is as much as in an
    all-reduce. No bit changes (numerics, N11): updates of elements depend on no others, and whether a gradient was inf
    or NaN, and the norm of all of them, are added up over the ranks.

    Tensors that are left to all ranks, with reasons: those of routines with norms of tensors, or that round
    stochastically by the number of the element; without elements; whose gradients are sparse, or in buffers already.

    Args:
        program: a program for ``degree`` ranks, which may have masters and casts in its updates: after
            `refopt.program.passes.optimize_cast` and `refopt.program.passes.fold_casts`, fp16 copies are gathered and
            not fp32 parameters. `refopt.program.passes.fuse_optimizer` comes after.
        rank: this rank's number.
        degree: the number of ranks.
        limit: megabytes of 2**20 bytes that the gradients of a buffer may have.
        axis: of a `refopt.comm.Mesh`, that the ranks share out the step along; see `refopt.program.passes.over_axes`.
            ``rank`` and ``degree`` are along it.

    Source: stage 1 of ZeRO (Rajbhandari et al., 2020), in flat buffers as in Megatron's distributed optimizer.
    """
    expect_program("shard_elements", program)
    degree = whole("shard_elements: degree", degree, 1)
    rank = whole("shard_elements: rank", rank, 0, degree - 1)
    check_limit("shard_elements: limit", limit)
    reason = declined("shard_elements", program, degree, axis)
    if reason:
        return Result(program, False, (reason,))
    search = _Search(program, degree, limit, axis)
    if not search.buckets:
        return Result(program, False, (*search.reasons, NOTHING))
    return Result(Rewriting(program, search.buckets, rank, along(degree, axis)).program(), True, tuple(search.reasons))


class _Search:
    """Finds what can be cut."""

    def __init__(self, program: Program, degree: int, limit: float, axis: str | None) -> None:
        self._program, self._degree, self._axis = program, degree, axis
        self.buckets: list[Bucket] = []
        self.reasons: list[str] = []
        scales = dependencies.singles(program, "scale", "communicate")
        tensors = sorted(self._tensors(), key=lambda each: each.reduced)
        vars = [program.vars[each.grad] for each in tensors]
        dtypes = [(var.dtype, program.vars[each.param].dtype) for each, var in zip(tensors, vars, strict=True)]
        for pair in dict.fromkeys(dtypes):
            own = [k for k, each in enumerate(dtypes) if each == pair]
            names, shapes = [vars[k].name for k in own], [vars[k].shape for k in own]
            for group in fuse_size(names, shapes, [pair[0]] * len(own), limit=limit).groups:
                self._add([tensors[own[k]] for k in group], scales)

    def _add(self, tensors: list[Tensor], scales: Mapping[str, list[int]]) -> None:
        """Make a bucket of tensors, unless something is in between."""
        program, places = self._program, [each.reduced for each in tensors]
        further = self._further(tensors)
        averages, reason = checked(program, places, scales, "sum", chain.from_iterable(further))
        reason = reason or self._needed(tensors, {*places, *averages, *chain.from_iterable(further)})
        if reason:
            self.reasons.append(f"{tensors[0].grad!r} to {tensors[-1].grad!r}: {reason}")
        else:
            self.buckets.append(Bucket(tuple(tensors), tuple(averages), further, tuple(self._spans(tensors))))

    def _tensors(self) -> Iterator[Tensor]:
        """What can be cut; why other tensors cannot is added to the reasons."""
        program = self._program
        sums = dependencies.singles(program, "all_reduce", axis=self._axis)
        for i, op in enumerate(program.main):
            routine = routine_of(op)
            for k, param in enumerate(op.inputs["params"] if routine else ()):
                grad = op.inputs["grads"][k]
                reason = self._why_not(op, k, i, sums.get(grad, []))
                if reason:
                    self.reasons.append(f"{param!r} is left to all ranks: {reason}")
                else:
                    yield Tensor(param, grad, sums[grad][0], i, k)

    def _why_not(self, op: Op, k: int, place: int, sums: Sequence[int]) -> str:
        """Why a tensor of an update cannot be cut. Empty if it can."""
        program, routine = self._program, routine_of(op)
        assert routine is not None
        param, grad = op.inputs["params"][k], op.inputs["grads"][k]
        if not routine.elementwise:
            return f"{routine.name} has norms of tensors"
        if op.attrs.get("rounding") == "stochastic":
            return "stochastic rounding counts the elements of each tensor"
        if len(sums) != 1:
            return f"{grad!r} has no all_reduce of its own" if not sums else f"{grad!r} is reduced twice"
        if math.prod(program.vars[param].shape) == 0:
            return "it has no elements"
        for slot, names in op.inputs.items():
            if slot in (*SHARED, *routine.scalars):
                continue
            name = names[k]
            if name in program.buffer_of or name in program.parts or name in program.whole_of:
                return f"{name!r} is in a buffer, or cut, already"
            if slot not in ("params", "grads") and (
                not program.vars[name].persistable or program.vars[name].part is not None
                or {*chain(*program.users[name])} != {place}
            ):  # fmt: skip
                return f"{name!r} is no memory that only its update uses from step to step"
        if program.vars[grad].persistable or program.writers[param] != 1:
            return f"{grad!r} lives from step to step" if program.writers[param] == 1 else "other ops change it, too"
        return ""

    def _further(self, tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
        """Places of the all-reduces of gradients along each axis beside that of the shards, if all have one there."""
        program = self._program
        axes = dict.fromkeys(op.attrs.get("axis") for op in program.main if op.type == "all_reduce")
        found = []
        for axis in (axis for axis in axes if axis != self._axis):
            sums = dependencies.singles(program, "all_reduce", axis=axis)
            places = [place for each in tensors for place in sums.get(each.grad, ()) if place > each.reduced]
            if len(places) == len(tensors):
                found.append(tuple(places))
        return tuple(found)

    def _needed(self, tensors: Sequence[Tensor], members: set[int]) -> str:
        """Which op needs the whole of what a rank has a part of. Empty if none does."""
        program, last = self._program, max(each.updated for each in tensors)
        for each in tensors:
            for i in program.users[each.param][0]:
                op = program.main[i]
                if each.updated < i and (i <= last or op.role == "optimize"):
                    return f"{title(op)} needs {each.param!r} after its update; fold_casts comes before"
            for i in program.users[each.grad][0]:
                op = program.main[i]
                if i > each.reduced and i not in (each.updated, *members) and op.type != "check_gradients":
                    return f"{title(op)} needs {each.grad!r} after its reduction"
        return ""

    def _spans(self, tensors: Sequence[Tensor]) -> Iterator[dict[int, tuple[int, int]]]:
        """What each rank has of each tensor."""
        vars = [self._program.vars[each.grad] for each in tensors]
        lengths = [padded(layout_of(var.dtype), math.prod(var.shape), var.dtype, 0) for var in vars]
        part, start = part_size(sum(lengths), self._degree), 0
        for var, length in zip(vars, lengths, strict=True):
            stop = start + math.prod(var.shape)
            borders = [start, *range((start // part + 1) * part, stop, part), stop]
            yield {first // part: (first - start, end - first) for first, end in pairwise(borders)}
            start += length
