"""A debugger in a kernel: what it reads and evaluates is no access of the thread."""

import io
import pdb
import re
import sys

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda
from simt.cases import PAIR

COMMANDS = """p x[3]
p x[-1] + x[1]
p x
p list(map(x.__getitem__, range(4)))
p x.sum()
p pairs[3]['a']
p pairs[3].item()
"""


def debugged(kernel, *args, commands=COMMANDS, block=32, **options):
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO(commands + "c\n"), stdout=out, nosigint=True, readrc=False)
    debugger.prompt, debugger.use_rawinput = "", False
    trace = sys.gettrace()
    try:
        with simt.observe(watch=True, strict="negative-index", **options) as log:
            kernel[1, block](*args, debugger)
    finally:
        sys.settrace(trace)
    return out.getvalue(), log


@cuda.jit
def kernel(x, pairs, debugger):
    t = cuda.threadIdx.x
    x[t] = t
    pairs[t]["a"] = t
    if t == 20:
        debugger.set_trace()
    x[t] += 1


def test_what_a_debugger_reads_is_nobodys():
    x, pairs = cuda.device_array(32, np.int32), cuda.device_array(32, PAIR)
    out, log = debugged(kernel, x, pairs)
    said = [line for line in out.splitlines() if not line.startswith((">", "->"))]
    poison = int(np.array(0xABABABAB, np.uint32).view(np.int32))
    assert [int(re.findall(r"-?\d+", line)[-1]) for line in said[:2]] == [4, poison + 2]
    assert "Error" not in out and out.count("(4)") >= 2 and log.bytes_read(x) == 32 * 4


def test_what_the_kernel_reads_beside_it_is_its_own():
    @cuda.jit
    def racy(x, debugger):
        t = cuda.threadIdx.x
        x[t] = t
        if t == 20:
            debugger.set_trace()
            x[t] = x[3]

    with pytest.raises(simt.DataRace):
        debugged(racy, np.zeros(32), commands="p x[3]\n")


def test_after_the_end_of_the_kernel():
    @cuda.jit
    def wrong(x):
        x[cuda.threadIdx.x] = 7
        x[100] = 1

    with pytest.raises(simt.OutOfBounds) as caught, simt.observe(watch=True):
        wrong[1, 1](np.zeros(4))
    x = caught.traceback[-1].frame.f_locals["x"]
    assert x[0] == 7 and x.tolist() == [7, 0, 0, 0]


@pytest.mark.parametrize(("wrong", "right"), [
    ("threadIdX", "threadIdx"), ("syncthread", "syncthreads"), ("shfl_down", "shfl_down_sync"),
    ("blockidx", "blockIdx"), ("atomic.ad", "add"), ("shared.arry", "array"),
    ("cg.this_gird", "this_grid"), ("fp16.hexpp", "hexp")])
def test_a_name_that_is_misspelt(wrong, right):
    where, _, name = wrong.rpartition(".")
    with pytest.raises(simt.Unsupported, match=rf"no cuda\.{wrong}: did you mean {right}\?"):
        getattr(getattr(cuda, where) if where else cuda, name)


def test_a_name_like_no_other():
    for name in ("squash", "fp16.htanh", "printf"):
        with pytest.raises(simt.Unsupported) as caught:
            eval(f"cuda.{name}")
        assert "did you mean" not in str(caught.value)
