"""Where elements are wrong, as a pattern."""

import numpy as np
import pytest

from refopt.oracle.diagnosis.pattern import BLOCKS, described, of_tensor, of_tensors


def mask(size, *spans):
    wrong = np.zeros(size, bool)
    for span in spans:
        wrong[span] = True
    return wrong


@pytest.mark.parametrize(("wrong", "text"), [
    (mask(300, slice(None)), "all elements"), (mask(1, 0), "the only element"),
    (mask(300, slice(288, None)), "the last 12 of 300 elements, a tail after whole blocks of 16 or 32"),
    (mask(303, slice(300, None)), "the last 3 of 303 elements, a tail after whole blocks of 4"),
    (mask(257, 256), "the last of 257 elements, a tail after whole blocks of 4 to 256"),
    (mask(300, slice(297, None)), "the last 3 of 300 elements"),
    (mask(300, slice(0, 5)), "elements 0 to 4 of 300"), (mask(100, 0), "element 0 of 100"),
    (mask(300, slice(0, 288)), "9 of 10 blocks of 32 elements, from element 0 to 287"),
    (mask(100, slice(16, 32), slice(64, 80)), "2 of 7 blocks of 16 elements, from element 16 to 79"),
    (mask(4096, slice(1024, 2048)), "1 of 4 blocks of 1024 elements, from element 1024 to 2047"),
    (mask(100, slice(1, None, 2)), "every second element from 1"),
    (mask(100, slice(3, 8)), "elements 3 to 7 of 100"), (mask(100, 41), "element 41 of 100"),
    (mask(100, 3, 5, 11, 12), "4 of 100 elements, scattered (4 %)"),
    (mask(100, 3, 41), "2 of 100 elements, scattered (2 %)"), (mask(2, slice(None)), "all elements"),
    (mask(100, 3, 5, 11), "3 of 100 elements, scattered (3 %)"), (mask(100, 3, 4), "elements 3 to 4 of 100"),
    (mask(100, slice(98, None)), "the last 2 of 100 elements"), (mask(99, 0, 1), "elements 0 to 1 of 99"),
    (mask(16, slice(0, 8)), "1 of 2 blocks of 8 elements, from element 0 to 7"),
    (mask(19, slice(16, None)), "the last 3 of 19 elements, a tail after whole blocks of 4 to 16"),
    (mask(150, slice(1, None, 64)), "every 64th element from 1"),
    (mask(9, slice(2, None, 3)), "every third element from 2"),
    (mask(200, slice(1, None, 65)), "4 of 200 elements, scattered (2 %)"),
    *((mask(4 * b, slice(b, 2 * b)), f"1 of 4 blocks of {b} elements, from element {b} to {2 * b - 1}")
      for b in BLOCKS)])
def test_elements(wrong, text):
    assert of_tensor(wrong) == text


@pytest.mark.parametrize(("wrong", "text"), [
    ([1] * 4, "all 4 tensors"), ([1], "the tensor"), ([0] * 110 + [1] * 5, "tensors from number 110 on, of 115"),
    ([0, 0, 1], "the last tensor of 3"), ([1, 1, 0], "2 of 3 tensors: 0, 1"),
    ([0, 1, 0], "tensor 1 of 3"), ([1, 0, 1, 0], "2 of 4 tensors: 0, 2")])
def test_tensors(wrong, text):
    assert of_tensors(list(map(bool, wrong))) == text


@pytest.mark.parametrize(("sizes", "last", "text"), [
    ((19, 35), 3, "the tail after whole blocks of 4"), ((12, 20), 4, "the tail after whole blocks of 8"),
    ((8, 12), 4, "the last elements"), ((9, 10), 2, "the last elements")])
def test_the_ends_of_several_sizes(sizes, last, text):
    """A whole block is no tail."""
    tensors = [(mask(size, slice(size - last, None)), np.ones(size), np.zeros(size)) for size in sizes]
    assert described({"params": tensors}) == f"params: all 2 tensors: {text}"


def test_empty_tensors_are_not_missed():
    assert of_tensors([True, False, True], [False, True, False]) == "all 3 tensors"
    assert of_tensors([False, False, True, True], [True, False, False, False]) == "tensors from number 2 on, of 4"


def test_what_is_unchanged_stands_apart():
    before = np.arange(20.0)
    now = before + 1
    now[16:] = before[16:]
    text = described({"params": [(mask(20, slice(None)), now, before)], "moment": [(mask(20), now, before)]})
    tail = "the last 4 of 20 elements, a tail after whole blocks of 8 or 16: unchanged"
    assert text == f"params: {tail}, and 2 of 3 blocks of 8 elements, from element 0 to 15; right: moment"
    assert described({"params": [(mask(20, slice(None)), before, before)]}) == "params: all elements: unchanged"
