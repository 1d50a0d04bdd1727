"""How many ops, collectives and bytes a step in buckets has: the formulae.

With G buckets of gradients, g_r of them owned by rank r, and B buckets of broadcast parameters, a step of rank r
has G ``reduce``, g_r ``scale`` and B ``broadcast`` ops, and in each of its g_r one update for each kind of parameters,
with copies and without. Making collectives of different owners at once takes fewer ops, see `batches`, but as many
calls. Bytes are those of `refopt.program.counts.mixed` plus the padding of buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from refopt.checks.arguments import listed, whole
from refopt.comm import Counted
from refopt.program.counts.arguments import check
from refopt.program.counts.mixed import HALF, SINGLE
from refopt.program.passes.grouping import MB, check_limit
from refopt.program.step import find_routine


def buckets(sizes: Sequence[int], items: Sequence[int], owners: Sequence[int], limit: float = 32.0) -> list[list[int]]:
    """Which tensors share a bucket, by number: neighbours among those of an owner, of one dtype, as many as fit.

    Args:
        sizes, items: elements, and bytes per element, of each tensor, in the order of the calls. A tensor without
            elements has its own bucket.
        owners: the owner of each.
        limit: megabytes of 2**20 bytes, at least 0; a larger tensor has its own bucket.
    """
    check("buckets", sizes=sizes, items=items, owners=owners)
    limit = check_limit("buckets: limit", limit)
    groups: list[list[int]] = []
    last: dict[int, list[int]] = {}
    lengths: dict[int, int] = {}  # of these, in elements
    for i, (size, item, owner) in enumerate(zip(sizes, items, owners, strict=True)):
        bucket = last.get(owner, [])
        fits = (lengths.get(owner, 0) + size) * item <= limit * MB
        if size and bucket and fits and items[bucket[0]] == item:
            bucket.append(i)
            lengths[owner] += size
            continue
        groups.append([i])
        if size:
            last[owner], lengths[owner] = groups[-1], size
    return groups


def bucketed_step(
    routine: str, sizes: Sequence[int], eligible: Sequence[bool], owners: Sequence[int], rank: int, *,
    gradient: int = SINGLE, limit: float = 32.0, send_limit: float = 16.0, batched: bool = False,
) -> dict[str, int]:
    """Ops of a sharded step, of the types whose number depends on buckets or on updates that cast; for others see
    `refopt.program.counts.mixed_step`.

    Args:
        routine: the optimizer of all parameters.
        sizes, eligible, owners: of each parameter, in the order in which gradients are reduced: its elements, whether
            it has a copy, and its owner.
        rank: this rank.
        gradient: bytes per element of a gradient.
        limit, send_limit: megabytes of a bucket of gradients, and of broadcast parameters.
        batched: whether `refopt.program.passes.batch_owners` ran last.
    """
    check("bucketed_step", sizes=sizes, eligible=eligible, owners=owners, limit=limit, send_limit=send_limit, rank=rank,
          gradient=gradient, batched=batched)
    merged = find_routine("bucketed_step: routine", routine).merged_name
    reduced = buckets(sizes, [gradient] * len(sizes), owners, limit)
    own = [bucket for bucket in reduced if owners[bucket[0]] == rank]
    counts = [sum(eligible[i] == kind for i in bucket) for bucket in own for kind in (True, False)]
    alone, together = sum(count == 1 for count in counts), sum(count > 1 for count in counts)
    sent = buckets(sizes, [HALF if good else SINGLE for good in eligible], owners, send_limit)
    (reductions, first), (broadcasts, second) = (
        batches([owners[bucket[0]] for bucket in each]) if batched else (len(each), 0) for each in (reduced, sent)
    )
    return {
        "reduce": reductions,
        "scale": len(own),
        routine: alone,
        merged: together + (len(sizes) > 0 and not own),  # an update without tensors, if other ranks have some
        "broadcast": broadcasts,
        "batch": first + second,
    }


def batches(roots: Sequence[int]) -> tuple[int, int]:
    """How many collectives stay single, and how many batches the others form.

    ``(a - b, b)`` if the root with the most collectives has a of them, and the one with the second most b.

    Args:
        roots: the root of each collective of a kind.
    """
    for k, root in enumerate(listed("batches: roots", roots, "ranks")):
        whole(f"batches: roots[{k}]", root, 0)
    most, second, *_ = *sorted(Counter(roots).values(), reverse=True), 0, 0
    return most - second, second


def bucketed_collectives(
    sizes: Sequence[int], eligible: Sequence[bool], owners: Sequence[int], *, chunk: int, clip: bool = False,
    scan: bool = True, gradient: int = SINGLE, limit: float = 32.0, send_limit: float = 16.0,
) -> dict[str, Counted]:
    """Calls of a rank in a step, and bytes of the arrays passed to them, as
    `refopt.comm.Communicator.counts` reports them.

    Args:
        sizes, eligible, owners, gradient, limit, send_limit: as in `bucketed_step`.
        chunk: each tensor of a bucket is padded to a multiple of this many bytes: 256 on a GPU and the executor, 4096
            in NumPy. A tensor alone in its bucket has no padding.
        clip, scan: whether the norm of all gradients is computed, and whether they are scanned for inf and NaN.
    """
    check("bucketed_collectives", sizes=sizes, eligible=eligible, owners=owners, limit=limit, send_limit=send_limit,
          chunk=chunk, gradient=gradient, clip=clip, scan=scan)
    counted = {}
    sent = [HALF if good else SINGLE for good in eligible]
    for name, items, most in (("reduce", [gradient] * len(sizes), limit), ("broadcast", sent, send_limit)):
        groups = [[sizes[i] * items[i] for i in bucket] for bucket in buckets(sizes, items, owners, most)]
        padded = sum(n if len(group) == 1 else -(-n // chunk) * chunk for group in groups for n in group)
        counted[name] = Counted(len(groups), padded)
    if scan:
        counted["all_reduce"] = Counted(1 + clip, SINGLE + clip * SINGLE * len(sizes))
    return counted
