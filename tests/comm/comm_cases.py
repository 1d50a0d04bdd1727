"""What every engine has to do, as functions of a communicator on NumPy arrays, and what NumPy says the result is."""

import numpy as np

from refopt.checks.dtypes import SIZES, arithmetic, numpy_dtype
from refopt.comm import CommError, local
from refopt.comm.calls import DTYPES

SIZES_OF_PARTS = [0, 1, 2, 7, 33]


def values(rank, dtype, count, seed=0):
    """What a rank brings: values of many magnitudes, so that the order of addition shows."""
    rng = np.random.default_rng([seed, rank, count])
    if dtype not in SIZES:
        return rng.integers(0, 200, count).astype(dtype)
    return (rng.standard_normal(count) * np.exp2(rng.integers(-6, 7, count))).astype(numpy_dtype(dtype))


def in_rank_order(arrays):
    """The sum by numerics N10, written out."""
    dtype = arrays[0].dtype
    wide = arithmetic(dtype.name) if dtype.name in SIZES else dtype
    total = arrays[0].astype(wide)
    for array in arrays[1:]:
        total = (total + array.astype(wide)).astype(wide)
    return total.astype(dtype)


def everything(comm, dtypes=tuple(DTYPES), seed=0, place=lambda array: array, read=lambda array: array):
    """Every operation at several sizes: a list of what, what came out, and what should have.

    ``place`` puts a NumPy array where the engine takes it from, ``read`` brings it back.
    """
    cases = []
    rank, size = comm.rank, comm.size
    for dtype in dtypes:
        for count in SIZES_OF_PARTS:
            arrays = [values(r, dtype, count, seed) for r in range(size)]
            wholes = [values(r, dtype, count * size, seed + 1) for r in range(size)]
            part = slice(rank * count, (rank + 1) * count)
            total, whole_total = in_rank_order(arrays), in_rank_order(wholes)
            root = count % size

            def note(operation, array, expected, dtype=dtype, count=count):
                cases.append((f"{operation} of {count} {dtype}", read(array).copy(), expected))

            mine, whole = arrays[rank], wholes[rank]
            for operation, given, roots, *expected in (
                    ("all_reduce", [mine], [], total), ("broadcast", [mine], [root], arrays[root]),
                    ("reduce", [mine], [root], total if rank == root else mine),
                    ("reduce_scatter", [whole, np.zeros_like(mine)], [], whole, whole_total[part]),
                    ("all_gather", [mine, np.zeros_like(whole)], [], mine, np.concatenate(arrays))):
                placed = [place(x.copy()) for x in given]
                getattr(comm, operation)(*placed, *roots)
                for k, (x, y) in enumerate(zip(placed, expected, strict=True)):
                    note(f"{operation}, its array {k},", x, y)

            source = place(whole.copy())
            comm.reduce_scatter(source, source[part])
            note("reduce_scatter in place", source[part], whole_total[part])
            comm.all_gather(source[part], source)
            note("all_gather in place", source, whole_total)

            if size > 1:
                x, y = place(mine.copy()), place(np.zeros_like(mine))
                with comm.batch():
                    comm.send(x, (rank + 1) % size)
                    comm.recv(y, (rank - 1) % size)
                note("send and recv", y, arrays[rank - 1])
                if rank == 0:
                    comm.send(x, size - 1)
                elif rank == size - 1:
                    comm.recv(y, 0)
                    note("recv", y, arrays[0])
    comm.barrier()
    return cases


def groups(comm, place=lambda array: array, read=lambda array: array):
    """Every operation in a group, in a group of that group, and over all beside them.

    The groups number their ranks backwards, so that a root or a peer of a group is another rank of all.
    """
    dtypes = "float32", "bfloat16", "int32"
    chosen = list(range(comm.size))[::-1][: max(2, comm.size - 1)]
    part = comm.group(chosen)
    cases = []
    if part is not None:
        assert (part.rank, part.size, part.members) == (chosen.index(comm.rank), len(chosen), tuple(chosen))
        cases += [("group: " + what, *ends) for what, *ends in everything(part, dtypes, 2, place, read)]
        inside = list(range(part.size))[1::-1]
        inner = part.group(inside)
        if inner is not None:
            assert (inner.rank, inner.members) == (inside.index(part.rank), tuple(chosen[k] for k in inside))
            cases += [("group of a group: " + what, *ends) for what, *ends in everything(inner, dtypes, 4, place, read)]
            inner.close()
        part.close()
    cases += [("beside a group: " + what, *ends) for what, *ends in everything(comm, dtypes[:1], 6, place, read)]
    return cases


def assert_equal_bits(cases):
    for what, got, expected in cases:
        assert got.dtype == expected.dtype and got.tobytes() == expected.tobytes(), what


def agrees(comm, dtypes=tuple(DTYPES), **how):
    """Every operation, in groups as well, has NumPy's bits; the local engine's, and its counts."""
    cases = everything(comm, dtypes, **how)
    assert_equal_bits(cases)
    same, counts = local.run(lambda c: (everything(c, dtypes), c.counts), comm.size)[comm.rank]
    assert comm.counts == counts, (comm.counts, counts)
    assert [array.tobytes() for _, array, _ in cases] == [array.tobytes() for _, array, _ in same]
    assert_equal_bits(groups(comm, **how))


def refused(rank, size=3, **options):
    """What `run` raises, having seen that every rank still there got the same."""
    got = {}

    def watched(world):
        try:
            return rank(world)
        except CommError as error:
            got[world.rank] = str(error)
            raise

    try:
        local.run(watched, size, **options)
    except CommError as error:
        assert set(got.values()) == {str(error)}
        return str(error), set(got)
    raise AssertionError("run raised nothing")


def array(count=12, dtype=np.float32):
    return np.zeros(count, dtype)
