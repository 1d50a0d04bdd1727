"""N14: the reference refuses a thread that flushes subnormal numbers to zero."""

import ctypes
import mmap
import platform
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from refopt import cpu
from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments
from refopt.program import bind, step_program

pytestmark = pytest.mark.clause("N14")

LDMXCSR = bytes([0x0F, 0xAE, 0x17, 0xC3])  # ldmxcsr [rdi]; ret
DEFAULT, FLUSHING = 0x1F80, 0x1F80 | 0x8040


@pytest.fixture
def flushing() -> Iterator[Callable[[int], None]]:
    """Switches this thread to flush-to-zero and denormals-are-zero, as a library built with -ffast-math does."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        pytest.skip("sets the control register of x86-64")
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(LDMXCSR)
    load = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    registers = {bits: ctypes.c_uint32(bits) for bits in (DEFAULT, FLUSHING)}

    def switch(bits: int) -> None:
        load(ctypes.addressof(registers[bits]))

    yield switch
    switch(DEFAULT)


def call(name: str) -> tuple[Callable[[], object], list[np.ndarray]]:
    """A call of a function that computes, and the arrays that it is given."""
    if name == "check_gradients":
        arrays = [np.ones(3, np.float32)]
        return lambda: cpu.check_gradients(arrays), arrays
    if name == "matmul":
        arrays = [np.ones((3, 3), np.float32)]
        return lambda: cpu.matmul(*arrays, *arrays), arrays
    if name == "merged_cast":
        arrays = [np.ones(3, np.float32), np.zeros(3, np.float16)]
        return lambda: cpu.merged_cast(arrays[:1], arrays[1:], scale=2.0), arrays
    routine = ROUTINES[name]
    case = make(routine, [3])
    positional, named = arguments(routine, case.slots)
    step = getattr(cpu, routine.merged_name)
    return lambda: step(*positional, **named, **step_of(routine)), [x for xs in case.slots.values() for x in xs or ()]


@pytest.mark.parametrize("name", [*ROUTINES, "check_gradients", "matmul", "merged_cast"])
def test_flushing_is_refused(flushing: Callable[[int], None], name: str) -> None:
    """And no byte is changed; without it, nothing is refused."""
    compute, arrays = call(name)
    before = [x.tobytes() for x in arrays]
    flushing(FLUSHING)
    with pytest.raises(RuntimeError, match="flushes subnormal numbers"):
        compute()
    flushing(DEFAULT)
    assert [x.tobytes() for x in arrays] == before
    compute()
    assert name in ("check_gradients", "matmul") or [x.tobytes() for x in arrays] != before


def test_flushing_is_refused_in_programs(flushing: Callable[[int], None]) -> None:
    """As one is bound, begun, and in each step; nothing is changed then."""
    program, param = step_program([("a", (3,))], "sgd", lr=0.5), np.ones(3, np.float32)
    flushing(FLUSHING)
    with pytest.raises(RuntimeError, match="flushes subnormal numbers"):
        bind(program, {"a": param})
    flushing(DEFAULT)
    bound = bind(program, {"a": param}, gradients={"a@GRAD": np.ones(3, np.float32)})
    for call in (bound.startup, bound.step, bound.step):
        before = param.tobytes()
        flushing(FLUSHING)
        with pytest.raises(RuntimeError, match="flushes subnormal numbers"):
            call()
        flushing(DEFAULT)
        assert param.tobytes() == before
        call()
    assert bound.steps == 2
