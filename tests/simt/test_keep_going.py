"""All defects of a run, and how each is told."""

import re

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda, script
from refopt.simt.watch import defects
from simt.cases import ints

SCRIPT = """
import numpy as np
from numba import cuda

@cuda.jit
def first(y, n):
    tile = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    y[t + n] = 1  # outside
    tile[t] = t
    y[t] = tile[63 - t]  # a race

@cuda.jit
def second(y, z):
    if cuda.threadIdx.x < 16:
        cuda.syncthreads()  # divergence
    y[0] = z[3]

@cuda.jit
def third(y, z):
    y[0] = z[3]  # unwritten

def main():
    y = np.zeros(64, np.int32)
    first[1, 64](y, 64)
    second[1, 64](y, y)
    z = cuda.device_array(8, np.int32)
    third[1, 1](y, z)
    third[1, 1](y, z)
    print("the end", y[0])

main()
"""
MARKS = [("OutOfBounds", "outside"), ("DataRace", "a race"), ("BarrierDivergence", "divergence"),
         ("UninitializedRead", "unwritten")]


def told(tmp_path, capsys, text, *options):
    (tmp_path / "script.py").write_text(text)
    status = script.main([*options, str(tmp_path / "script.py")])
    return status, *capsys.readouterr()


def test_all_defects_once_each(tmp_path, capsys):
    status, out, err = told(tmp_path, capsys, SCRIPT, "--keep-going")
    assert status == 1 and out.startswith("the end")
    reports = re.split(r"\n(?=\d of \d)", err)[1:]
    assert len(reports) == 4
    for number, (report, (kind, mark)) in enumerate(zip(reports, MARKS, strict=True), 1):
        assert report.startswith(f"{number} of 4") and f"refopt.simt.{kind}: " in report and f"# {mark}" in report
    assert "(64 times)" in reports[0]


@pytest.mark.parametrize("which", range(4))
def test_a_report_has_twelve_lines_at_most(tmp_path, capsys, which):
    """And names no file of the executor's; the line of the host that launched is there."""
    calls = {0: "first[1, 1](y, 64)", 1: "first[1, 64](y, 0)", 2: "second[1, 64](y, y)",
             3: "third[1, 1](y, cuda.device_array(8, np.int32))"}
    text = SCRIPT.partition("def main")[0] + f"""
def main():
    y = np.zeros(64, np.int32)
    {calls[which]}

def outer():
    main()

def outermost():
    outer()

outermost()
"""
    status, _, err = told(tmp_path, capsys, text, "--watch")
    assert status == 1 and len(err.splitlines()) <= 12 and calls[which] in err
    assert f"refopt.simt.{MARKS[which][0]}: " in err and f"# {MARKS[which][1]}" in err
    assert "refopt/simt" not in err and "runpy" not in err


def test_other_errors_show_the_way_in_the_kernel_alone(tmp_path, capsys):
    text = "from numba import cuda\n@cuda.jit\ndef kernel(x):\n    x.missing\nkernel[1, 1]((1, 2))\n"
    status, _, err = told(tmp_path, capsys, text)
    assert status == 1 and "x.missing" in err and "kernel[1, 1]" in err and "AttributeError" in err
    assert "refopt/simt" not in err and len(err.splitlines()) <= 12


def test_a_raised_report_has_no_step_of_the_executor():
    @cuda.jit
    def outside(x):
        x[cuda.threadIdx.x + 1] = 1

    with pytest.raises(simt.OutOfBounds) as caught:
        outside[1, 64](ints())
    assert [step.name for step in caught.traceback] == ["test_a_raised_report_has_no_step_of_the_executor"]
    with pytest.raises(simt.OutOfBounds) as caught, simt.observe(watch=True):
        outside[1, 64](ints())
    assert {str(step.path) for step in caught.traceback} == {__file__}
    assert caught.traceback[-1].frame.f_locals["x"].shape == (64,)  # for a debugger


def listed(kernel, *args, grid=1, block=32, **options):
    with simt.observe(watch=True, keep_going=True, **options) as log:
        kernel[grid, block](*args)
    return log


def test_a_kernel_goes_on_after_what_it_does_outside():
    @cuda.jit
    def histogram(x, bins, out):
        i = cuda.threadIdx.x
        cuda.atomic.add(bins, x[i], 1)
        cuda.syncwarp()
        out[i] = x[i + 16] + 1
        out[i + 32] = 2

    bins, out = ints(4), ints(32)
    log = listed(histogram, np.arange(32, dtype=np.int32) % 6, bins, out)
    assert [type(error) for error in log.defects] == [simt.OutOfBounds] * 3
    assert bins.tolist() == [6, 6, 5, 5] and (out[:16] == np.arange(16, 32) % 6 + 1).all()
    assert sorted(error.array for error in log.defects) == ["bins", "out", "x"]


def test_two_arrays_of_a_line_are_two_defects():
    @cuda.jit
    def copy(x, y, z):
        y[cuda.threadIdx.x + 60] = x[cuda.threadIdx.x + 60]
        z[cuda.threadIdx.x] = x[cuda.threadIdx.x + 60]

    log = listed(copy, np.ones(64), np.ones(64), z := np.ones(32))
    assert [error.array for error in log.defects] == ["x", "y", "x"] and z.tolist() == [1] * 4 + [0] * 28


def test_a_row_outside_ends_the_launch():
    @cuda.jit
    def kernel(x, y):
        y[0] = x[4][0]

    log = listed(kernel, np.ones((4, 4)), ints(), block=1)
    assert [type(error) for error in log.defects] == [simt.OutOfBounds]
    assert [one.kernel for one in log.launches] == ["kernel"]


def test_undefined_values_are_stored_as_what_they_stand_for():
    @cuda.jit
    def shuffle(x):
        x[cuda.laneid] = cuda.shfl_down_sync(0xFFFF, 1.5, 8) if cuda.laneid < 16 else 0

    x = np.zeros(32)
    (error,) = listed(shuffle, x).defects
    assert isinstance(error, simt.UninitializedRead) and (x[:16] == 1.5).all()


def test_a_launch_is_done_although_an_argument_is_misaligned():
    @cuda.jit
    def one(x):
        x[0] = 1

    data = cuda.to_device(np.zeros(9, np.uint8))
    assert [type(error) for error in listed(one, data[1:].view(np.float32)).defects] == [simt.MisalignedAddress]
    assert data.copy_to_host()[1:5].view(np.float32)[0] == 1


def test_the_nearest_of_several_races_is_named():
    @cuda.jit
    def kernel(x, y):
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        if t or b:
            y[32 * b + t] = x[0]
        if b == 1 and t == 20:
            x[0] = 1

    with pytest.raises(simt.DataRace) as caught, simt.observe(watch=True):
        kernel[2, 32](np.zeros(1), np.zeros(64))
    assert (caught.value.first.block, caught.value.first.thread) == ((1, 0, 0), (19, 0, 0))

    @cuda.jit
    def far_and_near(x, y):
        t = cuda.threadIdx.x
        x[t] = 1
        y[t] = x[(t + 40) % 64] + (x[t ^ 1] if t > 50 else 0)

    (race,) = listed(far_and_near, ints(), ints(), block=64).defects
    assert abs(race.first.thread[0] - race.second.thread[0]) == 1


def test_there_is_a_limit(monkeypatch):
    monkeypatch.setattr(defects, "MOST", 2)

    @cuda.jit
    def kernel(x):
        x[90] = 1
        x[91] = 1
        x[92] = 1

    log = listed(kernel, ints(), block=2)
    assert len(log.defects) == 2 and log.found.more == 1 and log.found.times == [2, 2]


def test_what_the_executor_lacks_ends_the_run_all_the_same():
    @cuda.jit
    def kernel(x):
        x[0] = cuda.fp16.htanh(x[0])

    with pytest.raises(simt.Unsupported):
        listed(kernel, np.zeros(1, np.float16), block=1)


def test_a_launch_outside_of_observe_names_the_array():
    @cuda.jit
    def kernel(matrix, rows):
        tile = cuda.shared.array(8, np.int32)
        tile[cuda.threadIdx.x] = 0
        matrix[rows[cuda.threadIdx.x], 0] += 1

    with pytest.raises(simt.OutOfBounds, match=r"of tile, shape \(8,\), int32") as caught:
        kernel[1, 9](np.zeros((4, 2)), ints(9))
    assert (caught.value.array, caught.value.index) == ("tile", 8)
    with pytest.raises(simt.OutOfBounds, match=r"of matrix, shape \(4, 2\), float64"):
        kernel[1, 8](np.zeros((4, 2)), np.full(8, 4))
