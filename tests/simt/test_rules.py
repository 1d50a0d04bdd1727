"""Each rule by its name: a kernel that it is about passes or not as the rule is on or off."""

import math
from contextlib import nullcontext

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda, rules
from simt.cases import ints


def acquire(x, flag):
    cuda.cg.this_grid()
    if cuda.blockIdx.x:
        x[0] = 1
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)
    elif cuda.threadIdx.x == 0:
        while cuda.atomic.cas(flag, 0, 2, 2) == 0:
            pass
        x[1] = x[0]


def fence_of_another(part, count):
    part[cuda.grid(1)] = 1
    cuda.threadfence()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0 and cuda.atomic.add(count, 0, 1) == 1:
        cuda.threadfence()
        part[5] = part[1] + part[3]


def early_return(x, _):
    if cuda.threadIdx.x == 0:
        return
    cuda.syncthreads()


def negative_index(x, _):
    if cuda.threadIdx.x == 0:
        x[-1] = x[2:][-2]


def negative_bound(x, _):
    if cuda.threadIdx.x == 0:
        x[0] = x[-3:][1]


def same_value(x, _):
    x[0] = 1


def shuffle_lanes(x, _):
    if cuda.threadIdx.x < 1:
        x[0] = cuda.shfl_sync(1, 5, 1)


def vote_sites(x, _):
    if cuda.threadIdx.x:
        cuda.ballot_sync(3, 0)
    else:
        cuda.ballot_sync(3, 0)


def index_by_shuffle(x, _):
    if cuda.threadIdx.x < 1:
        x[cuda.shfl_sync(1, 1, 1)] = 1


def vote_on_shuffle(x, _):
    if cuda.threadIdx.x < 1:
        cuda.any_sync(1, cuda.shfl_sync(1, 1, 1))


def shuffle_sites(x, _):
    if cuda.threadIdx.x:
        cuda.shfl_xor_sync(3, 0, 1)
    else:
        cuda.shfl_xor_sync(3, 0, 1)


def skipped_barrier(x, _):
    if cuda.threadIdx.x:
        cuda.syncthreads()
    x[cuda.threadIdx.x] = 1


def skipped_last_branch(x, _):
    i = cuda.grid(1)
    if i >= 1 and i < x.size:
        x[i] = 1
        if x[i]:
            cuda.syncthreads()
            x[i] = 2


def uninitialized(x, _):
    s = cuda.shared.array(2, np.int32)
    x[cuda.threadIdx.x] = s[cuda.threadIdx.x]


def warp_order(x, _):
    x[cuda.threadIdx.x] = cuda.threadIdx.x
    cuda.ballot_sync(3, 1)
    x[2 + cuda.threadIdx.x] = x[1 - cuda.threadIdx.x]


def zero_division(x, y):
    y[cuda.threadIdx.x] = 1 // x[0]


def float_range(x, y):
    y[cuda.threadIdx.x] = np.uint8(x[0] + 256.0)


def float_range_nan(x, y):
    y[cuda.threadIdx.x] = np.int32(x[0] * math.nan)


def float_range_stored(x, y):
    y[cuda.threadIdx.x] = np.uint8(x[0] - 0.9)
    y[cuda.threadIdx.x] = np.int16(x[0] + 32767.9)
    y[cuda.threadIdx.x] = x[0] + 2147483648.0


HIGHEST, LOWEST = np.array([2**63 - 1]), np.array([-32768], np.int16)


def signed_overflow(x, y):
    y[cuda.threadIdx.x] = HIGHEST[x[0]] + 1 > HIGHEST[x[0]]


def signed_overflow_of_abs(x, y):
    y[cuda.threadIdx.x] = abs(LOWEST[x[0]])


def int32_overflow(x, y):
    y[cuda.threadIdx.x] = 2**31 - 1
    y[cuda.threadIdx.x] += 1


KERNELS = {"acquire": acquire, "both-fences": fence_of_another, "early-return": early_return,
           "negative-index": negative_index, "negative-index, slice": negative_bound, "same-value": same_value,
           "shuffle-lanes": shuffle_lanes, "shuffle-lanes, index": index_by_shuffle,
           "shuffle-lanes, vote": vote_on_shuffle, "shuffle-sites": shuffle_sites, "shuffle-sites, vote": vote_sites,
           "skipped-barrier": skipped_barrier, "skipped-barrier, branch": skipped_last_branch,
           "uninitialized": uninitialized, "warp-order": warp_order, "zero-division": zero_division,
           "int32-overflow": int32_overflow, "float-range": float_range, "float-range, NaN": float_range_nan,
           "float-range, stored": float_range_stored, "signed-overflow": signed_overflow,
           "signed-overflow, abs": signed_overflow_of_abs}
ELSEWHERE = {"host-access", "partly-written-copy", "shared-types", "unwritten-copy"}  # and test_values.py


def passes(kernel, **options):
    try:
        with simt.observe(watch=True, **options):
            cuda.jit(kernel)[2 if "fence" in kernel.__name__ or kernel is acquire else 1, 2](ints(), ints())
    except simt.SimtError:
        return False
    return True


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
@pytest.mark.parametrize("case", KERNELS)
def test_a_rule_is_on_or_off(case, schedule):
    kernel, name = KERNELS[case], case.split(",")[0]
    assert passes(kernel, schedule=schedule) is (name in rules.OFF)
    assert passes(kernel, schedule=schedule, strict=name) is False
    assert passes(kernel, schedule=schedule, lenient=name) is True


def test_barriers_obey_their_rules_without_watching():
    skipped = (skipped_barrier, "skipped-barrier"), (skipped_last_branch, "skipped-barrier")
    for kernel, name in ((early_return, "early-return"), *skipped):
        with simt.observe(lenient=name):
            cuda.jit(kernel)[1, 2](ints(), ints())
        with pytest.raises(simt.BarrierDivergence), simt.observe(strict=name):
            cuda.jit(kernel)[1, 2](ints(), ints())


def test_every_rule_has_a_kernel():
    assert {case.split(",")[0] for case in KERNELS} | ELSEWHERE == {*rules.ON, *rules.OFF}
    assert all(hasattr(rules.DEFAULT, name.replace("-", "_")) for name in [*rules.ON, *rules.OFF])


@pytest.mark.parametrize("what", ["strict", "lenient"])
def test_names_of_rules_are_checked(what):
    for kind, value, words in ((ValueError, "speed", "some of acquire, .*, got 'speed'"), (TypeError, 3, "names .* 3")):
        with pytest.raises(kind, match=f"{what}: expected {words}"), simt.observe(**{what: value}):
            pass


# What the host does: pinned arrays.


def started(kind, stream):
    """A copy from or to a pinned array, on a stream."""
    pinned = cuda.pinned_array(8, np.float32)
    pinned[:] = 1
    x = cuda.to_device(np.zeros(8, np.float32))
    if kind == "from":
        x.copy_to_device(pinned, stream=stream)
    else:
        x.copy_to_host(pinned, stream=stream)
    return pinned


READS = {
    "element": lambda p: p[0], "sum": lambda p: p.sum(), "slice": lambda p: p[2:4].max(), "operator": lambda p: p + 1,
    "function": lambda p: np.concatenate([p, p]), "list": lambda p: p.tolist(), "loop": lambda p: list(p),
    "comparison": lambda p: np.array_equal(p, p), "text": str, "copy": lambda p: p.copy()}
WRITES = {
    "element": lambda p: p.__setitem__(0, 1), "all": lambda p: p.fill(0), "slice": lambda p: p[2:].__setitem__(0, 1),
    "in place": lambda p: p.__iadd__(1), "out": lambda p: np.sin(np.ones(8), out=p),
    "second out": lambda p: np.modf(np.ones(8, np.float32), out=(np.ones(8, np.float32), p)),
    "out of a function": lambda p: np.cumsum(np.ones(8), out=p), "place": lambda p: np.place(p, np.ones(8), 1),
    "copyto": lambda p: np.copyto(p, np.ones(8)), "put": lambda p: np.put(p, [0], 1), "method": lambda p: p.put([0], 1),
    "putmask": lambda p: np.putmask(p, p.view(np.ndarray) == 0, 1),
    "diagonal": lambda p: np.fill_diagonal(p.reshape(2, 4), 1), "sort": lambda p: p.sort(),
    "partition": lambda p: p.partition(2)}


@pytest.mark.parametrize("use", [*READS.values(), *WRITES.values()], ids=[*READS, *(f"set {w}" for w in WRITES)])
@pytest.mark.parametrize("kind", ["from", "to"])
def test_the_host_waits_for_copies_of_pinned_arrays(kind, use):
    """Reading what a copy reads is all that it may do before; what was watched counts when nobody watches as well."""
    stream, wrong = cuda.stream(), kind == "to" or use in WRITES.values()
    with simt.observe(watch=True, lenient="host-access"):
        use(started(kind, stream))
    use(started(kind, stream))

    def later(wait, on, watched=True):
        with simt.observe(watch=True):
            pinned = started(kind, on)
            wait()
            if watched:
                use(pinned)
        if not watched:
            use(pinned)

    nothing, event = lambda: None, cuda.event()
    for wait, watched in ((nothing, True), (nothing, False), (cuda.stream().synchronize, True)):
        with pytest.raises(simt.DataRace, match="host") if wrong else nullcontext() as caught:
            later(wait, stream, watched)
        if wrong:
            assert caught.value.filename == caught.value.first.filename == __file__
    for wait, on in ((stream.synchronize, stream), (cuda.synchronize, stream), (nothing, 0),
                     (lambda: (event.record(stream), event.synchronize()), stream)):
        later(wait, on)


def test_pinned_arrays_are_arrays():
    """A copy of one is none, and kernels take them as any other."""
    pinned = cuda.pinned_array((2, 3), np.int32, order="F")
    assert (pinned == np.frombuffer(b"\xab" * 4, np.int32)[0]).all() and pinned.flags.f_contiguous
    pinned[...] = np.arange(6).reshape(2, 3)
    assert isinstance(pinned, np.ndarray) and pinned.sum() == 15 and (pinned.T @ pinned).shape == (3, 3)
    assert type(pinned.copy()) is type(pinned + 1) is np.ndarray

    @cuda.jit
    def double(x):
        i, j = cuda.grid(2)
        x[i, j] *= 2

    double[1, (2, 3)](pinned)
    assert pinned.tolist() == [[0, 2, 4], [6, 8, 10]]
