"""Which launches run by lanes, and why the others run by threads."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda
from refopt.simt.lanes import run as lanes


def adds_often(x):
    for _ in range(2):
        cuda.atomic.add(x, 0, x[1])


def adds_after_others(x):
    if cuda.grid(1) % 64 < 32:
        cuda.syncwarp()
    cuda.atomic.add(x, 0, 1.0)


def adds_behind_a_fence(x):
    for _ in range(8):
        cuda.threadfence()
    cuda.atomic.add(x, 0, 1.0)


def a_part_or_all(x):
    i = cuda.grid(1)
    part = x[i % 4 :] if i % 3 else x
    x[i] = part[0]


def a_part_of_two(x):
    own, i = cuda.local.array(4, np.float64), cuda.grid(1)
    own[0] = own[1] = 2
    part = x[i % 4 :] if i % 3 else own[i % 2 :]
    x[i] = part[0]


def some_lanes(x):
    if cuda.grid(1) < 16:
        x[cuda.grid(1)] = cuda.shfl_sync(0xFFFF, 1.0, 0)


def spins(x):
    while cuda.atomic.add(x, 0, 0) < 0:
        pass


@cuda.jit(device=True)
def first_count(x):
    return cuda.atomic.add(x, 0, 0)


@cuda.jit(device=True)
def count_of(x):
    return first_count(x)


def spins_in_a_helper(x):
    while count_of(x) < 0:
        pass


def waits(x):
    while x[0] < 0:
        cuda.threadfence()


def swaps(x):
    cuda.atomic.compare_and_swap(x, 0, 1)


def prints(x):
    print(x[0])


def looks_in_a_tuple(x):
    x[0] = x[0] in (1, 2)


@pytest.mark.parametrize(("body", "dtype", "why"), [
    (spins, np.int32, "it waits for other threads"),
    (spins_in_a_helper, np.int32, "it waits for other threads"),
    (swaps, np.int32, "a call of compare_and_swap"), (waits, np.int32, "it waits for other threads"),
    (prints, np.int32, "a call of print"),
    (looks_in_a_tuple, np.int32, "Compare in looks_in_a_tuple, line ")])
def test_what_runs_by_threads_says_why(body, dtype, why):
    how = simt.how(cuda.jit(body)[4, 64], np.zeros(256, dtype))
    assert how.by == "threads" and how.why.startswith(why)


ORDER = "the order of atomics on floats, or of compare-and-swap"


@pytest.mark.parametrize(("body", "why"), [
    (some_lanes, "a warp operation of some lanes"), (adds_often, ORDER),
    (adds_after_others, ORDER), (adds_behind_a_fence, ORDER),
    (a_part_or_all, "a variable that is View on one path and another type on the other"),
    (a_part_of_two, "a variable that is a view of one array on one path and of another on the other")])
def test_what_turns_out_when_it_runs_is_said_afterwards(body, why, by_lanes):
    kernel, x = cuda.jit(body)[2, 64], np.zeros(128)
    assert simt.how(kernel, x).by == "lanes"
    kernel(x)
    assert simt.how(kernel, x) == ("threads", why) and by_lanes == [body.__name__]


def test_few_threads_and_observed_launches_run_by_threads():
    kernel, ints = cuda.jit(lambda x: None), np.zeros(1)
    assert str(simt.how(kernel[1, 64], ints)) == "by threads: 64 threads are fewer than 128"
    assert str(simt.how(kernel[2, 64], ints)) == "by lanes"
    with simt.observe():
        assert str(simt.how(kernel[2, 64], ints)) == "by threads: it is observed"
    with pytest.raises(TypeError, match=r"^how: launch: expected a kernel with its configuration, got "):
        simt.how(kernel, ints)


@pytest.mark.parametrize(("launch", "args"), [(cuda.jit(swaps)[4, 64], ()), (cuda.jit(swaps)[4, 64], (np.zeros(4), 1)),
                                              (cuda.jit(swaps, launch_bounds=128)[4, 256], (np.zeros(4),)),
                                              (cuda.jit("void(int32[:])")(swaps)[4, 64], (np.zeros(4),))])
def test_what_a_launch_refuses_how_refuses(launch, args):
    said = []
    for ask in (launch, lambda *args: simt.how(launch, *args)):
        with pytest.raises((simt.LaunchError, TypeError)) as caught:
            ask(*args)
        said.append((caught.type, str(caught.value)))
    assert said[0] == said[1]


def test_a_form_is_written_once_it_pays(monkeypatch):
    kernel, written = cuda.jit(lambda x: None), []
    make = lanes._make
    monkeypatch.setattr(lanes, "_make", lambda *args: [written.append(1), make(*args)][1])
    for count in range(1, 6):
        kernel[11, 31](np.zeros(1))
        assert len(written) == (count >= 4)
