"""Shuffles, votes and masks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refopt import simt
from refopt.simt import cuda
from simt.cases import FULL


def lanes(function, threads=32, dtype=np.int64):
    """What each of `threads` threads gets from a function of its lane."""
    out = cuda.device_array(threads, dtype)
    cuda.jit(device=True)(function)

    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = function(cuda.laneid)

    kernel[1, threads](out)
    return out.copy_to_host()


SHUFFLES = {
    "idx": (cuda.shfl_sync, lambda lane, n: n), "up": (cuda.shfl_up_sync, lambda lane, n: lane - n),
    "down": (cuda.shfl_down_sync, lambda lane, n: lane + n), "xor": (cuda.shfl_xor_sync, lambda lane, n: lane ^ n)}


@settings(deadline=None)
@given(st.sampled_from(sorted(SHUFFLES)), st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 33))
def test_shuffle_gives_the_value_of_the_source_lane_or_the_own(name, n):
    shuffle, source = SHUFFLES[name]
    sources = [source(lane, n & 31) for lane in range(32)]  # PTX takes five bits of the operand
    expected = [100 + (j if 0 <= j < 32 else lane) for lane, j in enumerate(sources)]
    assert lanes(lambda lane: shuffle(FULL, 100 + lane, n)).tolist() == expected


def test_a_shuffle_from_lane_32_is_one_from_lane_0():
    got = lanes(lambda lane: cuda.shfl_sync(FULL, lane, lane + 1))
    assert got[31] == 0 and got[5] == 6


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_shuffle_keeps_the_type(dtype):
    types = []
    note = simt.ptx_twin("int64")(lambda value: types.append(type(value)) or 0)
    lanes(lambda lane: note(cuda.shfl_xor_sync(FULL, dtype(lane), 1)))
    assert set(types) == {dtype}


@settings(deadline=None)
@given(st.integers(1, FULL))
def test_votes(bits):
    def votes(lane):
        mine = bits >> lane & 1
        return (
            cuda.ballot_sync(FULL, mine)
            | cuda.any_sync(FULL, mine) << 32
            | cuda.all_sync(FULL, mine) << 33
            | cuda.eq_sync(FULL, mine) << 34)

    every = bits == FULL
    assert set(lanes(votes).tolist()) == {int(np.uint32(bits).view(np.int32)) | 1 << 32 | every << 33 | every << 34}


def test_match():
    assert lanes(lambda lane: cuda.match_any_sync(FULL, lane % 2)).tolist() == [0x55555555, -0x55555556] * 16
    assert lanes(lambda lane: cuda.match_all_sync(FULL, 7)[0] + cuda.match_all_sync(FULL, lane)[0])[0] == -1
    def all_of_half(lane):
        mask, same = cuda.match_all_sync(0xFFFF << lane // 16 * 16, lane // 16)
        return 2 * mask + same

    assert lanes(all_of_half).tolist() == [2 * 0xFFFF + 1] * 16 + [-(1 << 17) + 1] * 16


def test_a_match_compares_the_bits_of_floats():
    """Numba casts them to integers: 0.0 and -0.0 differ, and a NaN matches itself."""
    values = np.array([0.0, -0.0, np.nan, np.nan, *[1.0] * 28], np.float32)
    assert lanes(lambda lane: cuda.match_any_sync(FULL, values[lane])).tolist() == [1, 2, 12, 12, *[-16] * 28]
    for value, other, mask in ((np.nan, np.nan, -1), (0.0, -0.0, 0)):
        both = np.array([value, other])
        assert lanes(lambda lane, both=both: cuda.match_all_sync(FULL, both[lane % 2])[0]).tolist() == [mask] * 32


def test_exited_lanes_are_not_waited_for():
    @cuda.jit
    def early(out):
        if cuda.laneid >= 8:
            return
        out[cuda.laneid] = cuda.ballot_sync(FULL, True)

    out = np.full(32, -1)
    early[1, 32](out)
    assert out.tolist() == [0xFF] * 8 + [-1] * 24
    with pytest.raises(simt.BarrierDivergence), simt.observe(strict="early-return"):
        early[1, 32](out)


SKIPPED = {"syncwarp": lambda mask: cuda.syncwarp(mask), "shfl": lambda mask: cuda.shfl_down_sync(mask, 1, 1),
           "ballot": lambda mask: cuda.ballot_sync(mask, True), "match": lambda mask: cuda.match_any_sync(mask, 1)}


@pytest.mark.parametrize("name", SKIPPED)
@pytest.mark.parametrize("watch", [True, False])
def test_lanes_that_run_past_a_warp_operation(name, watch):
    """As past a barrier. Other warps, lanes that the mask leaves out, and such as there are not may do so."""
    function = cuda.jit(SKIPPED[name], device=True)

    @cuda.jit
    def kernel(first, last, mask):
        if first <= cuda.threadIdx.x < last:
            function(mask)

    with simt.observe(watch=watch):
        kernel[1, 64](0, 32, FULL)
        kernel[1, 64](32, 64, FULL)
        kernel[1, 64](0, 16, 0xFFFF)
        kernel[1, 52](32, 52, FULL)
    for first, last, mask in [(0, 16, FULL), (33, 64, FULL), (0, 15, 0xFFFF)]:
        with pytest.raises(simt.BarrierDivergence, match="a warp operation is not reached"), simt.observe(watch=watch):
            kernel[1, 64](first, last, mask)
        with simt.observe(watch=watch, lenient="skipped-barrier"):
            kernel[1, 64](first, last, mask)
    with pytest.raises(simt.BarrierDivergence):
        kernel[64, 64](0, 16, FULL)


def test_a_short_warp_meets_under_the_full_mask():
    assert set(lanes(lambda lane: cuda.ballot_sync(FULL, True), threads=40).tolist()) == {-1, 0xFF}


def test_minus_one_is_the_full_mask():
    assert set(lanes(lambda lane: cuda.ballot_sync(-(lane % 2) or FULL, True)).tolist()) == {-1}


def test_the_mask_must_name_the_caller():
    with pytest.raises(simt.LaunchError, match="does not name it"):
        lanes(lambda lane: cuda.ballot_sync(0xFFFF, True))


def test_integer_intrinsics():
    assert [cuda.popc(255), cuda.clz(1), cuda.ffs(8), cuda.ffs(0), cuda.brev(1)] == [8, 63, 4, 0, 1 << 31]
    assert [cuda.clz(np.int32(1)), cuda.popc(np.int32(-1)), cuda.brev(np.uint64(1))] == [31, 32, 1 << 63]
    assert cuda.selp(True, 1, 2) == 1 and cuda.warpsize == 32
    assert lanes(lambda lane: cuda.lanemask_lt())[5] == 31
    assert lanes(lambda lane: cuda.activemask() >> lane & 1).all()
