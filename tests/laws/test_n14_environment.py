"""N14: the reference refuses a thread that flushes subnormal numbers to zero."""

import contextlib
import ctypes
import mmap
import platform
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refopt import cpu
from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments
from refopt.program import bind, step_program

pytestmark = [pytest.mark.clause("N14"), pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux", reason="sets the control register of x86-64")]

LDMXCSR = bytes([0x0F, 0xAE, 0x17, 0xC3])  # ldmxcsr [rdi]; ret
DEFAULT, FLUSHING = ctypes.c_uint32(0x1F80), ctypes.c_uint32(0x1F80 | 0x8040)


@contextlib.contextmanager
def flushing() -> Iterator[None]:
    """This thread flushes to zero and takes subnormals as zero, as if a library built with -ffast-math had been loaded.

    In it, a refusal is expected.
    """
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(LDMXCSR)
    load = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    with pytest.raises(RuntimeError, match="flushes subnormal numbers"):
        load(ctypes.addressof(FLUSHING))
        try:
            yield
        finally:
            load(ctypes.addressof(DEFAULT))


def call(name: str, lengths: list[int]) -> tuple[Callable[[], object], list[np.ndarray]]:
    """A call of a function that computes, and the arrays that it is given."""
    arrays = [np.ones(n, np.float32) for n in lengths]
    if name == "check_gradients":
        return lambda: cpu.check_gradients(arrays), arrays
    if name == "matmul":
        arrays = [np.ones((n, n), np.float32) for n in lengths]
        return lambda: [cpu.matmul(x, x) for x in arrays], arrays
    if name == "merged_cast":
        targets = [np.zeros(n, np.float16) for n in lengths]
        return lambda: cpu.merged_cast(arrays, targets, scale=2.0), [*arrays, *targets]
    routine = ROUTINES[name]
    case = make(routine, lengths)
    positional, named = arguments(routine, case.slots)
    step = getattr(cpu, routine.merged_name)
    return lambda: step(*positional, **named, **step_of(routine)), [x for xs in case.slots.values() for x in xs or ()]


@pytest.mark.parametrize("name", [*ROUTINES, "check_gradients", "matmul", "merged_cast"])
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=3))
@example([3])
def test_flushing_is_refused(name: str, lengths: list[int]) -> None:
    """An error is raised and nothing is modified; without flushing, no error."""
    compute, arrays = call(name, lengths)
    before = [x.tobytes() for x in arrays]
    with flushing():
        compute()
    assert [x.tobytes() for x in arrays] == before
    compute()
    assert name in ("check_gradients", "matmul") or not any(lengths) or [x.tobytes() for x in arrays] != before


@given(length=st.integers(1, 5))
def test_flushing_is_refused_in_programs(length: int) -> None:
    """When a program is bound, started, and in each step; nothing is modified."""
    program, param = step_program([("a", (length,))], "sgd", lr=0.5), np.ones(length, np.float32)
    with flushing():
        bind(program, {"a": param})
    bound = bind(program, {"a": param}, gradients={"a@GRAD": np.ones(length, np.float32)})
    for call in (bound.startup, bound.step, bound.step):
        before = param.tobytes()
        with flushing():
            call()
        assert param.tobytes() == before
        call()
    assert bound.steps == 2
