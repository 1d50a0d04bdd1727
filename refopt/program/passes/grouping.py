"""Which gradients share a buffer, and which of them are reduced together: rules of Paddle and PyTorch.

A rule is a function of the parameters' names and shapes and the gradients' dtypes, in the order in which the backward
pass makes the gradients. Sizes are those of the tensors without padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from refopt.checks.arguments import chosen, collected, number, whole
from refopt.checks.arguments import names as listed_names
from refopt.checks.dtypes import ITEM_SIZES
from refopt.program.model import extents_of

MB = 2**20
Shape = tuple[int, ...]


class Grouping(NamedTuple):
    """The result of a rule.

    Attributes:
        groups: tensor numbers by group; each tensor is in one group, which is reduced at once.
        buffers: group numbers by buffer, in memory order; groups in no buffer are not moved.
        name: the name of a buffer, with a placeholder for the name of its first gradient.
    """

    groups: tuple[tuple[int, ...], ...]
    buffers: tuple[tuple[int, ...], ...]
    name: str = "@FUSEDVAR@@GRAD@{}"


def early(
    names: Sequence[str], shapes: Sequence[Shape], dtypes: Sequence[str], *,
    memory_size: float = 0, groups_size: int = 3,
) -> Grouping:
    """By layer, then by memory, then by number; all in one buffer, the last group first.

    A layer is the part of a name before its first dot; names without a dot form one layer, ``@UNKNOW@``. Layers are in
    the order of their first appearance.

    Args:
        memory_size: bytes. Layers are joined until they reach it, so a group may be larger; 0 joins none.
        groups_size: how many of these groups are joined into one: 1 for none, -1 for all.

    Source: Paddle's ``alloc_continuous_space_for_grad_pass`` of PR 15497, with the flags
    ``fuse_parameter_memory_size`` and ``fuse_parameter_groups_size``. It puts each group before the earlier ones, so
    their order is reversed, as here.
    """
    names, shapes, dtypes = _tensors("early", names, shapes, dtypes)
    memory_size = check_limit("early: memory_size", memory_size)
    if whole("early: groups_size", groups_size) < 1 and groups_size != -1:
        raise ValueError(f"early: groups_size: expected -1 or at least 1, got {groups_size}")
    for k, dtype in enumerate(dtypes):
        if dtype != dtypes[0]:
            raise TypeError(f"early: {names[k]!r}: expected {dtypes[0]}, as {names[0]!r} has, got {dtype}")
    groups = _by_key([name.partition(".")[0] if "." in name else "@UNKNOW@" for name in names])
    if memory_size:
        sizes = _bytes(shapes, dtypes)
        groups = _joined(groups, sizes, lambda length, count: length >= memory_size)
    if groups_size != 1:
        count = len(groups) if groups_size == -1 else groups_size
        groups = [list(chain(*groups[k : k + count])) for k in range(0, len(groups), count)]
    return _in_one_buffer(groups[::-1])


def later(
    names: Sequence[str], shapes: Sequence[Shape], dtypes: Sequence[str], *,
    memory_size: float = -1.0, groups_size: int = 1,
) -> Grouping:
    """By layer, then by memory, then by dtype; in one buffer if there is one dtype.

    A layer is the part of a name before its first dot; a name without a dot is a layer. If the dtypes differ, each
    group is split by dtype, in the order of first appearance, and each part has its own buffer.

    Args:
        memory_size: megabytes of 2**20 bytes. Below 0, a group is a layer. 0 makes one group, sorted by name. Above,
            layers are joined until they reach it, so a group may be larger.
        groups_size: with ``memory_size`` above 0, the number of tensors from which on nothing is joined to a group,
            so a group may have more; 1 for no bound.

    Source: Paddle's ``coalesce_grad_tensor_pass``, with the flags ``fuse_parameter_memory_size`` and
    ``fuse_parameter_groups_size``, whose help texts still say what the early version did.
    """
    names, shapes, dtypes = _tensors("later", names, shapes, dtypes)
    memory_size = check_limit("later: memory_size", memory_size, -math.inf)
    _check_count("later: groups_size", groups_size)
    sizes = _bytes(shapes, dtypes)
    if memory_size == 0:
        groups = [sorted(range(len(names)), key=lambda i: names[i])] if names else []
    else:
        groups = _by_key([name.partition(".")[0] for name in names])
    if memory_size > 0:

        def full(length: int, count: int) -> bool:
            return 1 < groups_size < count or length / MB >= memory_size

        groups = _joined(groups, sizes, full)
    if len(set(dtypes)) <= 1:
        return _in_one_buffer(groups)
    cut = [[group[k] for k in part] for group in groups for part in _by_key([dtypes[i] for i in group])]
    return _a_buffer_each(cut)


def fuse_size(names: Sequence[str], shapes: Sequence[Shape], dtypes: Sequence[str], *, limit: float = 32.0) -> Grouping:
    """In order, as many as fit; one buffer per group, and none for a group of one tensor.

    A group ends where the next tensor would exceed the limit, or has another dtype.

    Args:
        limit: megabytes of 2**20 bytes, at least 0; a larger tensor forms its own group.

    Source: Paddle's ``FuseHelper`` in ``fleet/meta_optimizers/sharding/utils.py``.
    """
    names, shapes, dtypes = _tensors("fuse_size", names, shapes, dtypes)
    limit = check_limit("fuse_size: limit", limit)
    sizes = _bytes(shapes, dtypes)
    groups: list[list[int]] = []
    length = 0  # of the last group
    for i, dtype in enumerate(dtypes):
        if groups and dtypes[groups[-1][-1]] == dtype and (length + sizes[i]) / MB <= limit:
            groups[-1].append(i)
            length += sizes[i]
        else:
            groups.append([i])
            length = sizes[i]
    buffers = tuple((k,) for k, group in enumerate(groups) if len(group) > 1)
    return Grouping(tuple(map(tuple, groups)), buffers, "FusedGrad_{}")


def by_count(names: Sequence[str], shapes: Sequence[Shape], dtypes: Sequence[str], *, count: int = 8) -> Grouping:
    """In order, a number of tensors per group, with a new group where the dtype changes; one buffer per group.

    Args:
        count: the most tensors in a group.

    Source: Paddle's ``raw_program_optimizer`` of PR 34446, ``fuse_grad_size_in_num``.
    """
    names, shapes, dtypes = _tensors("by_count", names, shapes, dtypes)
    _check_count("by_count: count", count)
    groups: list[list[int]] = []
    for i, dtype in enumerate(dtypes):
        if groups and len(groups[-1]) < count and dtypes[groups[-1][-1]] == dtype:
            groups[-1].append(i)
        else:
            groups.append([i])
    return _a_buffer_each(groups)._replace(name="FusedOutput_{}")


def ddp(
    names: Sequence[str], shapes: Sequence[Shape], dtypes: Sequence[str], *,
    bucket_cap_mb: float = 25.0, first_bucket_mb: float = 1.0,
) -> Grouping:
    """Buckets: in order, separately for each dtype, until they reach a size, which they may exceed; a buffer each.

    The order is that in which gradients become ready, about the reverse of the parameters'. The first bucket of a dtype
    is small, so that reducing can begin early. The rest forms a last bucket of each dtype.

    Args:
        bucket_cap_mb, first_bucket_mb: megabytes of 2**20 bytes.

    Source: PyTorch's ``DistributedDataParallel``, as it rebuilds its buckets after the first iteration
    (``compute_bucket_assignment_by_size`` in ``reducer.cpp``). It leaves open in which order last buckets of several
    dtypes come; here they come as their first tensors do.
    """
    names, shapes, dtypes = _tensors("ddp", names, shapes, dtypes)
    bucket_cap_mb = check_limit("ddp: bucket_cap_mb", bucket_cap_mb)
    first_bucket_mb = check_limit("ddp: first_bucket_mb", first_bucket_mb)
    sizes = _bytes(shapes, dtypes)
    closed: list[list[int]] = []
    filling: dict[str, list[int]] = {}
    lengths: dict[str, int] = {}  # of what is being filled
    begun: set[str] = set()
    for i, dtype in enumerate(dtypes):
        bucket = filling.setdefault(dtype, [])
        bucket.append(i)
        limit = bucket_cap_mb if dtype in begun else first_bucket_mb
        lengths[dtype] = lengths.get(dtype, 0) + sizes[i]
        if lengths[dtype] >= limit * MB:
            closed.append(filling.pop(dtype))
            lengths[dtype] = 0
            begun.add(dtype)
    return _a_buffer_each(closed + sorted(filling.values()))


RULES: dict[str, Callable[..., Grouping]] = {
    "early": early, "later": later, "fuse_size": fuse_size, "by_count": by_count, "ddp": ddp,
}


def _tensors(where: str, names: Any, shapes: Any, dtypes: Any) -> tuple[tuple[str, ...], list[Shape], tuple[str, ...]]:
    """The checked arguments of a rule; raises if they are invalid, or differ in length."""
    checked_names, checked_dtypes = listed_names(f"{where}: names", names), listed_names(f"{where}: dtypes", dtypes)
    checked_shapes = collected(f"{where}: shapes", shapes, "shapes")
    for key, values in (("shapes", checked_shapes), ("dtypes", checked_dtypes)):
        if len(values) != len(checked_names):
            raise ValueError(f"{where}: {key}: expected {len(checked_names)} entries, as names has, got {len(values)}")
    for k, dtype in enumerate(checked_dtypes):
        chosen(f"{where}: dtypes[{k}]", dtype, ITEM_SIZES)
    pairs = enumerate(zip(checked_shapes, checked_dtypes, strict=True))
    extents = [extents_of(f"{where}: shapes[{k}]", shape, ITEM_SIZES[dtype]) for k, (shape, dtype) in pairs]
    return checked_names, extents, checked_dtypes


def check_limit(where: str, limit: Any, least: float = 0) -> float:
    """A limit in bytes or megabytes as a float; raises if it is invalid."""
    value = number(where, limit, least if least > -math.inf else None)
    if value != value:
        raise ValueError(f"{where}: expected a number, got nan")
    return value


def _check_count(where: str, count: Any) -> None:
    if whole(where, count) < 1:
        raise ValueError(f"{where}: expected at least 1, got {count}")


def _bytes(shapes: Sequence[Shape], dtypes: Sequence[str]) -> list[int]:
    return [math.prod(shape) * ITEM_SIZES[dtype] for shape, dtype in zip(shapes, dtypes, strict=True)]


def _by_key(keys: Sequence[str]) -> list[list[int]]:
    """Numbers by key, keys in the order of their first."""
    groups: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def _joined(groups: list[list[int]], sizes: list[int], full: Callable[[int, int], bool]) -> list[list[int]]:
    """Groups joined until they are full, by bytes and number of tensors."""
    joined: list[list[int]] = []
    length = 0  # of the last one
    for group in groups:
        more = sum(sizes[i] for i in group)
        if joined and not full(length, len(joined[-1])):
            joined[-1] += group
            length += more
        else:
            joined.append(list(group))
            length = more
    return joined


def _in_one_buffer(groups: list[list[int]]) -> Grouping:
    return Grouping(tuple(map(tuple, groups)), (tuple(range(len(groups))),) if groups else ())


def _a_buffer_each(groups: list[list[int]]) -> Grouping:
    return Grouping(tuple(map(tuple, groups)), tuple((k,) for k in range(len(groups))))
