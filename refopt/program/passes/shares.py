"""Who owns which parameter: whole tensors, never split."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from refopt.checks.arguments import chosen, collected, whole


def in_order(sizes: Sequence[int], ranks: int) -> list[int]:
    """Keep neighbours together: move on to the next rank when the current one has more than its share.

    ::

        total = sum(sizes);  rank = 0;  assigned = 0
        for each size:
            if assigned > total * (rank + 1) / ranks:  rank = rank + 1
            the tensor goes to rank;  assigned = assigned + size

    The comparison is strict, comes before the tensor is added, and moves on by one rank at most. So the last ranks may
    own nothing (``[1, 1, 1, 10]`` over two ranks all goes to the first), and a rank may own much more than its share.
    It is evaluated in integers, which is what fp64 gives for any sizes that sum to less than 2**53 / ranks.

    Source: ``Shard._split_params`` of Paddle's ``sharding_optimizer``.
    """
    total, rank, assigned = sum(sizes), 0, 0
    owners = []
    for size in sizes:
        if assigned * ranks > total * (rank + 1):
            rank += 1
        owners.append(rank)
        assigned += size
    return owners


def largest_first(sizes: Sequence[int], ranks: int) -> list[int]:
    """Assign tensors, the largest first, to the rank with the least so far. Ties: in order, to the first rank.

    The largest load is at most 4/3 - 1/(3 * ranks) times that of the best partition.

    Source: R. L. Graham, Bounds on multiprocessing timing anomalies, 1969.
    """
    loads, owners = [0] * ranks, [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[i] = min(range(ranks), key=lambda rank: loads[rank])
        loads[owners[i]] += sizes[i]
    return owners


RULES: dict[str, Callable[[Sequence[int], int], list[int]]] = {"paddle": in_order, "greedy": largest_first}


def partition(sizes: Sequence[int], ranks: int, rule: str = "paddle") -> list[int]:
    """The owner of each tensor.

    Args:
        sizes: elements or bytes of each tensor, in program order, at least 0.
        ranks: the number of ranks.
        rule: ``"paddle"`` for `in_order`, ``"greedy"`` for `largest_first`.

    Returns:
        A rank from 0 to ranks - 1 for each tensor. Some ranks may get nothing.
    """
    chosen("partition: rule", rule, RULES)
    count = whole("partition: ranks", ranks, 1)
    checked = collected("partition: sizes", sizes, "sizes")
    return RULES[rule]([whole(f"partition: sizes[{i}]", size, 0) for i, size in enumerate(checked)], count)
