"""What the text of a function becomes in a listing, by kernels of this file."""

import re

import numpy as np
import pytest
import texts

from refopt.catalog import ROUTINES
from refopt.cpu.reduce import TILE as LENGTH
from refopt.gpu import kernels, target
from refopt.gpu.elementwise import merged_update
from refopt.gpu.gradient_check import checker
from refopt.gpu.kernels import Kernel
from refopt.gpu.listing.parts import literal
from refopt.gpu.listing.wrap import wrapped
from refopt.gpu.loss_scale import updater
from refopt.gpu.target import cuda, device_function

# Above the constant.
USED, ALSO = 3, 4  # beside it


def kernel_of(yes, size, real=np.float32, other=None):
    """A kernel that closes over what it is given."""
    zero, no, off = real(0), not yes, (real(1), real(2))

    @device_function
    def passed(x, i):
        return x[i]

    @device_function
    def third(x, unused, i):
        return passed(x, i)

    @device_function
    def always(x):
        return yes

    @device_function
    def counted(x, i, by):
        x[i] += by
        return x[i]

    @device_function
    def pair(x, i):
        """Two."""
        return (x[i], x[i + 1])

    @device_function
    def same(values):
        return (values[0], values[1])

    @kernels.kernel((32, 2))
    def shown(x, n, unread):
        # Above.
        i, dead, also = cuda.threadIdx.x, n + 1, USED  # beside
        gone = dead + 1  # noqa: F841
        lost, none = n + 2, dead  # noqa: F841
        kept = counted(x, 0, zero)  # noqa: F841
        if no:
            x[0] = 1
        elif i < size * 2:  # a branch
            x[1] = third(x, counted(x, 1, zero), i + size)
        elif yes:
            # The one that is left.
            x[2] = off[1] if yes else off[0]
        else:
            x[3] = 1
        if always(x) and i == 0:
            values = pair(x, i)
            store = same(values)
            x[4] = store[0] + (zero if no else store[1])
        if yes:
            if not no:
                x[5] = also  # deep
                return
            x[6] = 1
        x[7] = 1

    return shown


def body_of(text, name):
    """The lines of a function."""
    return text[text.index(f"def {name}(") :].split("\n\n\n")[0].rstrip("\n")


def test_what_is_written_of_a_function():
    text = kernel_of(True, 2).source()
    assert body_of(text, "shown") == """\
def shown(x, n, unread):
    # Above.
    i, also = cuda.threadIdx.x, USED  # beside
    kept = counted(x, 0, zero)
    if i < 4:  # a branch
        x[1] = third(x, counted(x, 1, zero), i + 2)
    else:
        # The one that is left.
        x[2] = off[1]
    if always(x) and i == 0:
        values = pair(x, i)
        store = same(values)
        x[4] = store[0] + store[1]
    x[5] = also  # deep
    return"""


def test_what_is_written_of_the_same_function_for_other_values():
    text = kernel_of(False, 3).source()
    assert body_of(text, "shown") == """\
def shown(x, n, unread):
    # Above.
    i = cuda.threadIdx.x  # beside
    kept = counted(x, 0, zero)
    x[0] = 1
    if always(x) and i == 0:
        values = pair(x, i)
        store = same(values)
        x[4] = store[0] + (zero)
    x[7] = 1"""


def test_comparisons_come_to_what_they_do_in_python():
    size = 2

    @kernels.kernel()
    def compared(x):
        x[0] = size == 2, size != 2, size is None, size is not None, size < 2, size <= 2, size > 2, size >= 2

    expected = "True, False, False, True, False, True, False, True"
    assert body_of(compared.source(), "compared") == f"def compared(x):\n    x[0] = {expected}"


def wide():
    """Another function of a name that there is, and another constant."""
    zero = np.float64(0)

    @device_function
    def counted(x, i):
        x[i] += zero
        return i

    return counted


@device_function
def apart(x, i, j):
    """The second is looked at first."""
    return x[j] - x[i]


@device_function
def turned(x, i, j):
    return apart(x, j, i)


@device_function
def twice(x, i):
    return apart(x, i, i)


@device_function
def noted(x, i):
    later(x)


@device_function
def surely(x):
    return True


@device_function
def total_of(*values):
    return values[0] + values[1]


@device_function
def three(x):
    return x[0], x[1], x[2]


@device_function
def later(x):
    return x[0] + x[0]


@device_function
def two_of(values):
    return (values[0], values[1])


@device_function
def first_of(values):
    return two_of(values)[0]


def tangled():
    """A kernel in which things must stay that look as if they could go, or be moved."""
    zero, yes, other, step = np.float32(0), True, wide(), turned

    @device_function
    def counted(x, i):
        x[i] += zero
        x[i] += x[i]
        return i

    @kernels.kernel()
    def tangle(x, n):
        total = x[0]
        total += x[1]
        wide_counted = counted(x, 1)
        values = three(x)
        pair = two_of(values)
        x[2] = step(x, counted(x, 3), other(x, 4))
        x[3] = step(x, 0, wide_counted) + first_of(values)
        if n > 3:
            only = n
        if counted(x, 5) > 7:
            only = n  # noqa: F841
        if n == 0:
            x[6] = pair[0]
        elif not yes:
            x[6] = pair[1]
        elif n == 1:
            x[7] = 2
        else:
            x[7] = 3
        if n == 2 and yes: x[8] = 4  # noqa: E701
        if (n > 3 or n < 1) and yes and n != 5: x[1] = total_of(x[0], x[1])  # noqa: E701
        x[9] = twice(x, counted(x, 9)) + twice(x, n - n)
        done = noted(x, 1)
        if (counted(x, 10) > 2 and not yes) or done is None:
            x[11] = 5
        if surely(counted(x, 11)):
            x[11] = 6
        unread, read = counted(x, 10), n  # noqa: F841
        x[10] = read
        for k in range(2):
            if yes:
                k = k + n
        while n > 8:
            # Down.
            n -= 1 if yes else 2

    return tangle


def test_what_does_something_stays():
    text = tangled().source()
    assert body_of(text, "tangle") == """\
def tangle(x, n):
    total = x[0]
    total += x[1]
    wide_counted = counted(x, 1)
    values = three(x)
    pair = two_of(values)
    x[2] = turned(x, counted(x, 3), other(x, 4))
    x[3] = turned(x, 0, wide_counted) + first_of(values)
    if counted(x, 5) > 7:
        pass
    if n == 0:
        x[6] = pair[0]
    elif n == 1:
        x[7] = 2
    else:
        x[7] = 3
    if n == 2: x[8] = 4
    if (n > 3 or n < 1) and n != 5: x[1] = total_of(x[0], x[1])
    x[9] = twice(x, counted(x, 9)) + twice(x, n - n)
    done = noted(x, 1)
    if (counted(x, 10) > 2 and False) or done is None:
        x[11] = 5
    if surely(counted(x, 11)):
        x[11] = 6
    unread, read = counted(x, 10), n
    x[10] = read
    for k in range(2):
        k = k + n
    while n > 8:
        # Down.
        n -= 1"""
    assert "\nzero = np.float32(0)\nzero_float64 = np.float64(0)\n" in text
    assert "x[i] += zero_float64\n" in body_of(text, "other")
    assert body_of(text, "turned") == "def turned(x, i, j):\n    return apart(x, j, i)"


@pytest.mark.parametrize("n", range(10))
@pytest.mark.parametrize("made", [tangled(), kernel_of(True, 2), kernel_of(False, 3)], ids=["tangled", "yes", "no"])
def test_what_is_written_runs_as_the_function_does(made, n):
    scope = texts.executed(made.source())
    values = np.random.default_rng(n).normal(size=12).astype(np.float32)
    outcomes = []
    for kernel in (made.executor, scope[made.name]):
        x = cuda.to_device(values)
        kernel[1, 2](x, n, *[n] * (made.name == "shown"))
        outcomes.append(x.copy_to_host().tobytes())
    assert outcomes[0] == outcomes[1] != values.tobytes()


def test_names_keep_out_of_the_way_of_locals():
    """A function that goes by another name than its own, which is a local there; and names of Python's."""
    alias, range = later, np.float32(5)

    @device_function
    def max(x):
        return x[0] + range

    largest = max

    @kernels.kernel()
    def caller(x):
        later = x[1]
        x[2] = later + largest(x) + alias(x)

    scope = texts.executed(caller.source())
    assert {name for name in scope if name != "__builtins__"} == {
        "np", "cuda", "caller", "alias", "largest", "range_float32"}
    x = cuda.to_device(np.arange(1, 4, dtype=np.float32))
    scope["caller"][1, 1](x)
    assert x.copy_to_host()[2] == 2 + (1 + 5) + 2


def test_numbers_keep_their_bits():
    values = -0.0, 0.0, 1.5, 0.1, 3.0, np.inf, -np.inf, np.nan
    numbers = [kind(x) for kind in (np.float32, np.float64) for x in values]
    for number in [*numbers, np.int64(-3), np.uint32(7)]:
        again = eval(literal(number), {"np": np})
        assert type(again) is type(number) and again.tobytes() == number.tobytes()
    assert [literal(x) for x in (3, 0.5, (2, 3))] == ["3", "0.5", "(2, 3)"]
    assert literal((numbers[1],)) == "(np.float32(0),)" and literal((numbers[1],) * 8) == "(np.float32(0),) * 8"


def test_long_lines_are_broken_at_brackets_if_they_have_any():
    assert wrapped("    x[0] = y[1]  # why\n    y = 1  # so", 18) == "    # why\n    x[0] = y[1]\n    y = 1  # so"
    assert wrapped("        return total_of_all", 20) == "        return total_of_all"


def test_a_constant_imported_by_another_name_keeps_it():
    @kernels.kernel()
    def filled(x):
        x[0] = LENGTH

    assert "\nfrom refopt.cpu.reduce import TILE as LENGTH\n" in filled.source()


def test_intrinsics_of_one_name_are_told_apart_by_their_ptx():
    def made(asm):
        @target.intrinsic(asm, "", "", "")
        def barrier():
            """The twin."""

        return barrier

    one, two, one_again = made("bar.sync 0;"), made("bar.sync 1;"), made("bar.sync 0;")

    @kernels.kernel()
    def waits():
        one()
        two()
        one_again()

    text = waits.source()
    names = re.findall(r"#     bar\.sync (\d);\n@ptx_twin\(\).*\ndef (\w+)\(", text)
    assert [number for number, _ in names] == ["0", "1"]
    calls = [name for _, name in names]
    assert body_of(text, "waits") == f"def waits():\n    {calls[0]}()\n    {calls[1]}()\n    {calls[0]}()"


def test_a_function_without_a_file():
    exec("def typed(x):\n    x[0] = 1", scope := {})
    with pytest.raises(OSError, match=r"^source: expected functions of a file that can be read, got one of <string>$"):
        Kernel(scope["typed"]).source()


def test_what_made_a_kernel_is_told():
    assert updater().source().startswith(
        "# update_loss_scaling, made by refopt.gpu.loss_scale.updater()\n\nimport")
    assert checker("float32", np.float32).source().startswith(
        "# check_gradients, made by refopt.gpu.gradient_check.checker(float32, float32)\n")
    choices = ("maximize", False), ("rounding", "nearest")
    text = merged_update(ROUTINES["sgd"], ("float32", "float16", None), choices).source()
    dtypes, chosen = "(float32, float16, None)", "((maximize, False), (rounding,\n#     nearest))"
    made = f"refopt.gpu.elementwise.merged_update(sgd, {dtypes}, {chosen})"
    assert text.startswith(f"# merged_sgd, made by {made}\n\n")
