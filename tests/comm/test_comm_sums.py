"""The order in which ranks are added, and by how much bits differ when it is another."""


import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm.comm_cases import values
from refopt.checks.dtypes import SIZES
from refopt.comm import local, sums


@given(data=st.data(), size=st.integers(1, 8), dtype=st.sampled_from(list(SIZES)), count=st.integers(0, 40))
def test_both_algorithms_are_within_the_bound_of_their_roundings(data, size, dtype, count):
    arrays = [values(r, dtype, count, data.draw(st.integers(0, 2**16))) for r in range(size)]
    exact = sum((a.astype(np.longdouble) for a in arrays), np.zeros(count, np.longdouble))
    magnitude = sum((np.abs(a.astype(np.longdouble)) for a in arrays), np.zeros(count, np.longdouble))
    digits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
    narrow = 2.0 ** -digits[dtype]
    wide = narrow if dtype in ("float32", "float64") else 2.0**-24
    tiny = float(np.finfo(np.float16).smallest_subnormal) if dtype == "float16" else 0
    error = {name: np.abs(sums.total(arrays, name).astype(np.longdouble) - exact) for name in sums.ALGORITHMS}
    once = (size - 1) * wide * magnitude * 1.01 + (0 if wide == narrow else narrow * np.abs(exact) * 1.01 + tiny)
    assert (error["rank_order"] <= once).all()
    assert (error["ring"] <= (size - 1) * (narrow * magnitude * 1.1 + tiny)).all()


@pytest.mark.clause("N10")
@pytest.mark.parametrize("algorithm", sums.ALGORITHMS)
def test_the_order_of_addition(algorithm):
    """Two large numbers cancel, if they meet before the small one is lost."""
    a, b, c = np.float32(2**25), np.float32(-(2**25)), np.float32(1)

    def rank(world):
        x = np.array([[a, a, a], [b, b, b], [c, c, c]][world.rank], np.float32)
        y = x.copy()
        world.all_reduce(x)
        z = np.zeros(1, np.float32)
        world.reduce_scatter(y.copy(), z)
        world.reduce(y, 1)
        return x, z, y

    everyone = local.run(rank, 3, algorithm=algorithm)
    # Of the ring's chunks, 0 is b + c + a, 1 is c + a + b, 2 is a + b + c.
    expected = [1, 1, 1] if algorithm == "rank_order" else [0, 0, 1]
    for i, (reduced, scattered, _) in enumerate(everyone):
        assert reduced.tolist() == expected and scattered.tolist() == [expected[i]]
    assert everyone[1][2].tolist() == [expected[1]] * 3


def test_16_bit_types_are_rounded_once_in_rank_order_and_at_each_hop_in_the_ring():
    arrays = [np.array([x], np.float16) for x in (2048, 1, 1)]  # 2048 + 1 is halfway, and rounds down
    assert sums.rank_order(arrays)[0] == 2050 and sums.ring(arrays, 2)[0] == 2048


def test_integers_wrap_around_and_nan_and_inf_go_through():
    assert sums.rank_order([np.array([200], np.uint8)] * 2)[0] == 144
    with np.errstate(all="raise"):
        x = sums.rank_order([np.array([np.inf, np.nan, 65504], np.float16), np.array([-np.inf, 1, 65504], np.float16)])
    assert np.isnan(x[:2]).all() and np.isposinf(x[2])


def test_one_rank_keeps_every_bit():
    odd = np.array([0x7C01, 0xFE01, 0x8000], np.uint16).view(np.float16)  # NaNs with payloads, -0

    def rank(world):
        x = odd.copy()
        world.all_reduce(x)
        return x

    for algorithm in sums.ALGORITHMS:
        assert local.run(rank, 1, algorithm=algorithm)[0].tobytes() == odd.tobytes()


def test_slices():
    for count in range(12):
        for size in range(1, 6):
            cuts = sums.slices(count, size)
            lengths = [cut.stop - cut.start for cut in cuts]
            assert [i for cut in cuts for i in range(count)[cut]] == list(range(count))
            assert len(cuts) == size and max(lengths) - min(lengths) <= 1 and lengths == sorted(lengths, reverse=True)
