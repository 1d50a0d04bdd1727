"""Sectors and wavefronts against the rules, written down again one access at a time."""

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refopt import simt
from refopt.simt import cuda
from refopt.simt.profile.traffic import groups, occurrences, sectors, wavefronts

# request, lane, array, a multiple of the width, width, whether it is atomic
ACCESSES = st.lists(min_size=1, max_size=80, elements=st.tuples(
    st.integers(0, 2), st.integers(0, 31), st.integers(0, 1), st.integers(0, 70), st.sampled_from([1, 2, 4, 8, 16])))


def columns(rows):
    request, lane, array, at, nbytes = np.array(rows).T
    return request, lane, array, at * nbytes, nbytes


@given(ACCESSES, st.booleans())
def test_sectors(rows, atomic):
    request, _, array, start, nbytes = columns(rows)
    costs = sectors(request, array, start, nbytes, np.full(len(rows), atomic))
    touched, needed, lanes, starts = defaultdict(set), defaultdict(set), defaultdict(int), []
    for r, _, a, at, width in rows:
        every = range(at * width, at * width + width)
        turn = starts.count((r, a, at * width)) if atomic else 0
        starts.append((r, a, at * width))
        touched[r, a] |= {(turn, byte // 32) for byte in every}
        needed[r, a] |= set(every)
        lanes[r, a] += 1
    keys = [(int(request[row]), int(array[row])) for row in costs.first]
    assert keys == sorted(touched)
    assert dict(zip(keys, costs.cost.tolist(), strict=True)) == {key: len(each) for key, each in touched.items()}
    assert dict(zip(keys, costs.least.tolist(), strict=True)) == {key: -(-len(x) // 32) for key, x in needed.items()}
    assert dict(zip(keys, costs.lanes.tolist(), strict=True)) == lanes


@given(ACCESSES, st.sampled_from([1, 2, 4, 8, 16]), st.booleans(), st.sampled_from([5, 100]))
def test_wavefronts(rows, width, atomic, most):
    """The lanes of a request access as many bytes each; no lane twice."""
    rows = list({row[:2]: (*row[:3], row[3] % most, width) for row in rows}.values())
    request, lane, _, start, nbytes = columns(rows)
    costs = wavefronts(request, lane, start, nbytes, np.full(len(rows), atomic))
    parts = defaultdict(lambda: defaultdict(list))  # by request and part of the warp: words of each bank
    for r, lane_number, _, at, _ in rows:
        part = lane_number // {8: 16, 16: 8}.get(width, 32)
        for word in {byte // 4 for byte in range(at * width, at * width + width)}:
            parts[r, part][word % 32].append(word)
    expected, least = defaultdict(int), defaultdict(int)
    for (r, _), banks in parts.items():
        expected[r] += max(len(words) if atomic else len(set(words)) for words in banks.values())
        least[r] += 1
    requests = [int(request[row]) for row in costs.first]
    assert dict(zip(requests, costs.cost.tolist(), strict=True)) == expected
    assert dict(zip(requests, costs.least.tolist(), strict=True)) == least


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=30))
def test_groups_and_occurrences(rows):
    one, other = np.array(rows, np.int64).reshape(-1, 2).T
    numbers, first = groups(one, other)
    keys = sorted(set(rows))
    assert [keys[n] for n in numbers] == rows
    assert first.tolist() == [rows.index(key) for key in keys]
    assert occurrences(one, other).tolist() == [rows[:n].count(row) for n, row in enumerate(rows)]


def test_atomics_on_one_element_move_its_sector_each_in_turn():
    @cuda.jit
    def kernel(x):
        cuda.atomic.add(x, cuda.threadIdx.x // 8 * 8, 1)

    with simt.observe(profile=True) as log:
        kernel[1, 32](cuda.to_device(np.zeros(32, np.int32)))
    assert [(row.requests, row.sectors, row.least) for row in log.profile.sectors] == [(1, 32, 1)]


def test_a_request_to_two_arrays_is_one():
    @cuda.jit
    def kernel(x, y, z):
        i = cuda.threadIdx.x
        source = x if i < 8 else y
        z[i] = source[i]

    x, y, z = (cuda.to_device(np.zeros(32, np.float32)) for _ in range(3))
    with simt.observe(profile=True) as log:
        kernel[1, 32](x, y, z)
    rows = [(row.array, row.requests, row.lanes, row.sectors) for row in log.profile.sectors if row.kind == "load"]
    assert rows == [("x", 1, 8, 1), ("y", 0, 24, 3)]
    assert "z[i] = source[i]" in str(log.profile) and "per request" in str(log.profile)


def test_an_empty_launch():
    @cuda.jit
    def kernel():
        pass

    with simt.observe(profile=True) as log:
        kernel[1, 1]()
    assert log.profile.sectors == log.profile.banks == [] and len(log.profile.lines) == 1
