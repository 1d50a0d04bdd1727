"""The rules of grouping, against examples worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt.program.passes.grouping import MB, RULES, Grouping, by_count, ddp, early, fuse_size, later

F, H = "float32", "float16"


def groups(rule, tensors, **flags):
    """The groups as names. A tensor is its name and its bytes, of fp32 if no dtype is given."""
    names, sizes, dtypes = zip(*((t if len(t) == 3 else (*t, F)) for t in tensors), strict=True)
    made = rule(
        names, [(size // {F: 4, H: 2}[dtype],) for size, dtype in zip(sizes, dtypes, strict=True)], dtypes, **flags)
    return [" ".join(names[i] for i in group) for group in made.groups], made


def plain(*names):
    """Tensors of 4 bytes."""
    return [(name, 4) for name in names]


# By layer, memory and number of groups, in reverse order.


@pytest.mark.parametrize(("flags", "expected"), [
    (dict(groups_size=1), ["c.w", "x y", "b.w b.v", "a.w a.b.c"]),
    (dict(groups_size=2), ["x y c.w", "a.w a.b.c b.w b.v"]), (dict(groups_size=3), ["c.w", "a.w a.b.c b.w b.v x y"]),
    (dict(), ["c.w", "a.w a.b.c b.w b.v x y"]), (dict(groups_size=4), ["a.w a.b.c b.w b.v x y c.w"]),
    (dict(groups_size=-1), ["a.w a.b.c b.w b.v x y c.w"])])
def test_early_by_layer_and_number(flags, expected):
    """Up to the first dot; what has none is one layer, where the first of it is. The last group comes first."""
    got, made = groups(early, plain("a.w", "b.w", "x", "a.b.c", "y", "b.v", "c.w"), **flags)
    assert got == expected
    assert made.buffers == (tuple(range(len(got))),) and made.name.format("g") == "@FUSEDVAR@@GRAD@g"


@pytest.mark.parametrize(("memory", "expected"), [
    (0, ["d.w", "c.w", "b.w", "a.w"]), (1, ["d.w", "c.w", "b.w", "a.w"]), (4, ["d.w", "c.w", "b.w", "a.w"]),
    (8, ["d.w", "b.w c.w", "a.w"]), (9, ["d.w", "b.w c.w", "a.w"]), (12, ["d.w", "b.w c.w", "a.w"]),
    (13, ["c.w d.w", "a.w b.w"]), (16, ["c.w d.w", "a.w b.w"]), (17, ["d.w", "a.w b.w c.w"]),
    (100, ["a.w b.w c.w d.w"])])
def test_early_by_memory(memory, expected):
    """A group is closed when it has so many bytes: it may have more. Exactly as many close it, too."""
    tensors = [("a.w", 12), ("b.w", 4), ("c.w", 8), ("d.w", 8)]
    assert groups(early, tensors, memory_size=memory, groups_size=1)[0] == expected


def test_early_by_all_three():
    """Layers of 8, 8, 4 and 4 bytes; of 8 at least; two of these to a group; the last first."""
    tensors = [("a.w", 4), ("b.w", 8), ("a.b", 4), ("c.w", 4), ("d.w", 4), ("e.w", 4)]
    assert groups(early, tensors, memory_size=8, groups_size=2)[0] == ["c.w d.w e.w", "a.w a.b b.w"]


# By layer and memory in megabytes, then by dtype.


def test_later_is_by_layer_by_default():
    """A name without a dot is a layer by itself, and may be that of others."""
    got, made = groups(later, plain("a.w", "x", "b.w", "a.b", "y", "x.w"))
    assert got == ["a.w a.b", "x x.w", "b.w", "y"]
    assert made == later(["a.w", "x", "b.w", "a.b", "y", "x.w"], [(1,)] * 6, [F] * 6, memory_size=-3)
    assert made.buffers == ((0, 1, 2, 3),) and made.name.format("g") == "@FUSEDVAR@@GRAD@g"


def test_later_with_no_memory_is_one_group_sorted_by_name():
    assert groups(later, plain("b.w", "c", "a.w", "B"), memory_size=0)[0] == ["B a.w b.w c"]


@pytest.mark.parametrize(("memory", "expected"), [
    (0.5, ["a.w", "b.w", "c.w c.b", "d.w"]), (1, ["a.w", "b.w c.w c.b", "d.w"]), (1.5, ["a.w b.w", "c.w c.b d.w"]),
    (1.75, ["a.w b.w c.w c.b", "d.w"]), (99, ["a.w b.w c.w c.b d.w"])])
def test_later_by_memory(memory, expected):
    """In megabytes of 2**20 bytes; layers are not cut; exactly as many close a group."""
    tensors = [("a.w", MB), ("b.w", MB // 2), ("c.w", MB // 4), ("c.b", MB // 4), ("d.w", MB)]
    assert groups(later, tensors, memory_size=memory)[0] == expected


@pytest.mark.parametrize(("size", "memory", "expected"), [
    (1, 99, ["a.1 a.2 b.1 c.1 c.2 d.1"]), (2, 99, ["a.1 a.2 b.1", "c.1 c.2 d.1"]),
    (3, 99, ["a.1 a.2 b.1 c.1 c.2", "d.1"]), (5, 99, ["a.1 a.2 b.1 c.1 c.2 d.1"]),
    (2, -1, ["a.1 a.2", "b.1", "c.1 c.2", "d.1"]), (2, 0, ["a.1 a.2 b.1 c.1 c.2 d.1"]),
    (3, 8 / MB, ["a.1 a.2", "b.1 c.1 c.2", "d.1"])])
def test_later_by_number_of_tensors(size, memory, expected):
    """More tensors than that close a group, so it has one more at least; only where memory counts."""
    tensors = plain("a.1", "a.2", "b.1", "c.1", "c.2", "d.1")
    assert groups(later, tensors, memory_size=memory, groups_size=size)[0] == expected


def test_later_by_dtype():
    """Groups are cut by dtype, which come as they first appear in the group; each has a buffer then."""
    tensors = [("a.1", 2, H), ("a.2", 4), ("b.1", 4), ("a.3", 2, H), ("b.2", 2, H), ("c", 4)]
    got, made = groups(later, tensors)
    assert got == ["a.1 a.3", "a.2", "b.1", "b.2", "c"] and made.buffers == ((0,), (1,), (2,), (3,), (4,))
    got, made = groups(later, tensors, memory_size=0)
    assert got == ["a.1 a.3 b.2", "a.2 b.1 c"] and made.buffers == ((0,), (1,))
    got, made = groups(later, tensors, memory_size=8 / MB)
    assert got == ["a.1 a.3", "a.2", "b.1 c", "b.2"] and made.buffers == ((0,), (1,), (2,), (3,))


# As many as fit.


@pytest.mark.parametrize(("limit", "expected"), [
    (11, ["a", "b c", "d", "e"]), (12, ["a b", "c d", "e"]), (15, ["a b", "c d", "e"]), (16, ["a b c", "d e"]),
    (3, ["a", "b", "c", "d", "e"]), (99, ["a b c d e"])])
def test_fuse_size(limit, expected):
    """A group never exceeds the limit, unless a tensor does by itself; exactly the limit fits."""
    got, made = groups(fuse_size, [("a", 8), ("b", 4), ("c", 4), ("d", 4), ("e", 12)], limit=limit / MB)
    assert got == expected
    assert made.buffers == tuple((k,) for k, group in enumerate(got) if " " in group)
    assert made.name.format("g") == "FusedGrad_g"


def test_fuse_size_by_dtype():
    """Another dtype than the one before begins a group, so interleaved dtypes are never grouped."""
    assert groups(fuse_size, [("a", 4), ("b", 2, H), ("c", 4), ("d", 4), ("e", 2, H)])[0] == ["a", "b", "c d", "e"]


def test_fuse_size_is_32_megabytes():
    tensors = [("a", 16 * MB), ("b", 16 * MB), ("c", 4), ("d", 40 * MB), ("e", 4)]
    assert groups(fuse_size, tensors)[0] == ["a b", "c", "d", "e"]


@pytest.mark.parametrize(("limit", "expected"), [(math.inf, ["a b c"]), (0, ["a", "b", "c"])])
def test_fuse_size_with_any_limit(limit, expected):
    assert groups(fuse_size, [("a", 8), ("b", 4 * MB), ("c", 4)], limit=limit)[0] == expected


# By number.


def test_by_count():
    got, made = groups(by_count, plain(*"abcdefghij"))
    assert got == ["a b c d e f g h", "i j"] and made.buffers == ((0,), (1,)) and made.name == "FusedOutput_{}"
    assert groups(by_count, plain(*"abcd"), count=2)[0] == ["a b", "c d"]
    assert groups(by_count, plain(*"abc"), count=1)[0] == ["a", "b", "c"]
    assert groups(by_count, [("a", 4), ("b", 4), ("c", 2, H), ("d", 4)], count=3)[0] == ["a b", "c", "d"]


# Buckets.


def test_ddp():
    """The first bucket of 1 MB, the others of 25, each closed when it has as many or more."""
    tensors = [("a", MB // 2), ("b", MB // 2), ("c", 24 * MB), ("d", 2 * MB), ("e", 25 * MB), ("f", MB), ("g", 4)]
    got, made = groups(ddp, tensors)
    assert got == ["a b", "c d", "e", "f g"]
    assert made.buffers == ((0,), (1,), (2,), (3,)) and made.name.format("g") == "@FUSEDVAR@@GRAD@g"
    assert groups(ddp, [("a", MB - 4), ("b", 4), ("c", 4)])[0] == ["a b", "c"]
    assert groups(ddp, plain(*"abcde"), bucket_cap_mb=8 / MB, first_bucket_mb=4 / MB)[0] == ["a", "b c", "d e"]


def test_ddp_by_dtype():
    """Every dtype fills its own buckets, first one small; what is left comes by its first tensor."""
    tensors = [("a", 4), ("b", 2, H), ("c", 4), ("d", 2, H), ("e", 4), ("f", 2, H), ("g", 2, H), ("h", 4)]
    got, _ = groups(ddp, tensors, bucket_cap_mb=8 / MB, first_bucket_mb=4 / MB)
    assert got == ["a", "b d", "c e", "f g", "h"]


# Any rule.


@given(rule=st.sampled_from(list(RULES)), one=st.booleans(), tensors=st.lists(
    st.tuples(st.sampled_from(["a", "b.c", "b.d", "e.f.g"]), st.integers(1, 9), st.sampled_from([F, H]))))
def test_every_tensor_is_in_one_group_and_every_buffer_of_one_dtype(rule, tensors, one):
    names = [f"{name}{k}" for k, (name, _, _) in enumerate(tensors)]
    dtypes = [F if one or rule == "early" else dtype for _, _, dtype in tensors]
    made = RULES[rule](names, [(size,) for _, size, _ in tensors], dtypes)
    assert isinstance(made, Grouping)
    assert sorted(i for group in made.groups for i in group) == list(range(len(tensors)))
    assert len({k for buffer in made.buffers for k in buffer}) == sum(map(len, made.buffers))
    for buffer in made.buffers:
        assert len({dtypes[i] for k in buffer for i in made.groups[k]}) == 1


def test_groups_of_no_memory_are_none():
    with pytest.raises(ValueError, match=r"^early: groups_size: expected -1 or at least 1, got 0"):
        early(["a"], [(1,)], [F], groups_size=0)
