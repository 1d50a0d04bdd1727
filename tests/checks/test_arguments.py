"""What functions ask of plain arguments: one rule for each kind, and an error that says what was expected."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from refopt import checks
from refopt.checks import arguments

NO_NUMBERS = [None, "1", b"1", True, np.True_, np.timedelta64(1), np.array([1]), np.array(True), np.ma.masked, [1], 1j,
              ...]


WHOLE = [2, np.int8(2), np.uint64(2), np.int64(2), np.array(2), np.array(2, np.uint8)]
BROKEN = [2.0, np.float16(2), np.float32(2), Fraction(2), np.array(2.0)]


@pytest.mark.parametrize("value", [*WHOLE, *BROKEN], ids=repr)
def test_numbers_of_any_type(value):
    found = arguments.number("f: x", value, 2, 2)
    assert found == 2 and type(found) is float and arguments.is_number(value)


@pytest.mark.parametrize("value", WHOLE, ids=repr)
def test_whole_numbers_of_any_type(value):
    found = arguments.whole("f: n", value, 2, 2)
    assert found == 2 and type(found) is int and arguments.is_whole(value)


@pytest.mark.parametrize(("value", "is_one", "take", "expected"), [
    *((x, arguments.is_whole, arguments.whole, "an integer") for x in [*NO_NUMBERS, *BROKEN]),
    *((x, arguments.is_number, arguments.number, "a number") for x in [*NO_NUMBERS, Decimal(2)])])
def test_what_is_no_number(value, is_one, take, expected):
    assert not is_one(value)
    with pytest.raises(TypeError, match=f"^f: x: expected {expected}, got "):
        take("f: x", value)


@pytest.mark.parametrize(("bounds", "value", "expected"), [
    ((2, None), 1, "an integer of at least 2"), ((2, 5), 1, "an integer from 2 to 5"),
    ((2, 5), 6, "an integer from 2 to 5"), ((None, 5), 6, "an integer from 0 to 5"), ((0, None), -1, "of at least 0")])
def test_whole_numbers_out_of_range(bounds, value, expected):
    with pytest.raises(ValueError, match=f"^f: n: expected .*{expected}, got {value}$"):
        arguments.whole("f: n", value, *bounds)
    for bound in bounds:
        assert bound is None or arguments.whole("f: n", bound, *bounds) == bound


@pytest.mark.parametrize(("bounds", "inside", "outside", "expected"), [
    ({}, [np.inf, np.nan, -1.0], [], ""), ({"finite": True}, [-1e308], [np.inf, -np.inf, np.nan], "a finite number"),
    ({"least": 0}, [0.0, -0.0, np.inf], [-5e-324, np.nan], "a number of at least 0"),
    ({"above": 0}, [5e-324], [0.0, np.nan], "a number above 0"),
    ({"most": 1}, [1.0, -np.inf], [np.nextafter(1.0, 2), np.nan], "a number of at most 1"),
    ({"most": 16777216}, [16777216], [16777217], "a number of at most 16777216"),
    ({"below": 1}, [np.nextafter(1.0, 0)], [1.0, np.nan], "a number below 1"),
    ({"least": 0, "below": 1, "finite": True}, [0.0], [1.0, -1.0, np.nan], "a finite number of at least 0 and below 1"),
])
def test_numbers_in_a_range(bounds, inside, outside, expected):
    for value in inside:
        found = arguments.number("f: x", value, **bounds)
        assert found == value or (found != found and value != value)
    for value in outside:
        with pytest.raises(ValueError, match=f"^f: x: expected {expected}, got "):
            arguments.number("f: x", value, **bounds)


def test_numbers_beyond_float64():
    for value in (10**400, -(10**400), Fraction(10**400)):
        with pytest.raises(ValueError, match=r"^f: x: expected a number in the range of float64, got one beyond it"):
            arguments.number("f: x", value)


@pytest.mark.parametrize("value", ["no", 0, 1, np.int64(1), None, np.array(True), [True]])
def test_flags(value):
    assert arguments.flag("f: on", np.True_) is True and arguments.flag("f: on", False) is False
    with pytest.raises(TypeError, match=r"^f: on: expected True or False, got "):
        arguments.flag("f: on", value)


@pytest.mark.parametrize("value", [np.array(["a", "b"]), ["a"], {"a": 1}, None, 1, b"a", "A"], ids=repr)
def test_named_choices(value):
    assert type(arguments.chosen("f: form", np.str_("a"), ["a", "b"])) is str
    assert arguments.chosen("f: on", np.False_, (True, False)) is False
    with pytest.raises(ValueError, match=r"^f: form: expected one of a, b, got "):
        arguments.chosen("f: form", value, ["a", "b"])
    with pytest.raises(ValueError, match="expected one of True, False, got 1"):
        arguments.chosen("f: on", 1, (True, False))


@pytest.mark.parametrize("value", ["ab", b"ab", bytearray(2), memoryview(b"ab"), np.zeros(2), {"a": 1}, {1}, None, 3,
                                   (x for x in "ab")], ids=lambda value: type(value).__name__)
def test_lists(value):
    assert arguments.listed("f: xs", (1, 2)) == arguments.listed("f: xs", [1, 2]) == [1, 2]
    with pytest.raises(TypeError, match=f"^f: xs: expected a list of arrays, got {type(value).__name__}$"):
        arguments.listed("f: xs", value)


def test_what_can_be_gone_through_once():
    assert arguments.collected("f: xs", (x for x in (1, 2)), "sizes") == (1, 2)
    assert arguments.names("f: names", iter(["a", "b"])) == ("a", "b")
    for value in ("ab", b"ab", 3, None, np.array(3)):
        with pytest.raises(TypeError, match=r"^f: names: expected a sequence of names, got "):
            arguments.names("f: names", value)
    with pytest.raises(TypeError, match=r"^f: names\[1\]: expected a name, got 2$"):
        arguments.names("f: names", ["a", 2])


def test_mappings():
    assert arguments.mapped("f: state", {"a": 1, "b": 2}, ["a", "b", "c"], ["a"]) == {"a": 1, "b": 2}
    for value, message in (([("a", 1)], "f: state: expected a dictionary with a, got list"),
                           ({"b": 1}, "f: state: expected a dictionary with a, got none of a"),
                           ({"a": 1, "d": 2, "e": 3}, "f: state: expected no more than a, b, c, got 'd', 'e'"),
                           ({"a": 1, 2: 2}, "f: state: keys[1]: expected a name, got 2")):
        with pytest.raises(TypeError) as error:
            arguments.mapped("f: state", value, ["a", "b", "c"], ["a"])
        assert str(error.value) == message


def test_values_in_errors_take_one_line():
    assert arguments.shown("a\n  b") == r"'a\n b'" and arguments.shown(np.zeros((2, 3))) == "an array of shape (2, 3)"
    assert arguments.shown("a" * 78) == repr("a" * 78) and arguments.shown("a" * 79) == f"'{'a' * 76}..."
    assert arguments.shown([[0] * 50] * 2) == f"{str([[0] * 50] * 2)[:77]}..."


@pytest.mark.parametrize(("shape", "strides", "layout", "in_c_order"), [
    ((1, 5), (4096, 4), (0, 1), True), ((5, 1), (4, -8), (1, 0), True), ((2, 3), (4, 8), (1, 2), False),
    ((2, 3), (12, 4), (3, 1), True), ((2, 3), (16, 4), None, False), ((0, 3), (400, 4), (), True),
    ((1,), (400,), (0,), True), ((2,), (-4,), None, False)])
def test_layouts(shape, strides, layout, in_c_order):
    """An extent of one has no stride: what stands there is not looked at; nor is anything of an array of no element."""
    array = checks.host_array(np.lib.stride_tricks.as_strided(np.zeros(64, np.float32), shape, strides), "x")
    assert array.layout() == layout and array.in_c_order() == in_c_order


def test_arrays_that_differ_only_in_values():
    x = np.zeros((2, 3), np.float32)
    others = [x, x[:], x.astype(np.int32), np.zeros((3, 2), np.float32), np.asfortranarray(x + 1)]
    others.append((x + 1).view(np.matrix))
    assert checks.alike(x + 1, x) and not any(checks.alike(other, x) for other in others)


def test_an_array_without_gaps_is_taken_as_it_is():
    """In any order of axes; of another there is a copy, in C order."""
    x = np.arange(24.0).reshape(4, 6)
    assert checks.dense(turned := x.T) is turned
    copy = checks.dense(x[:, ::2].T)
    assert copy.flags.c_contiguous and (copy == x[:, ::2].T).all()
