"""N14: the reference refuses a thread that flushes subnormal numbers to zero."""

import ctypes
import mmap
import platform
from collections.abc import Iterator

import numpy as np
import pytest

from refopt import cpu

LDMXCSR = bytes([0x0F, 0xAE, 0x17, 0xC3])  # ldmxcsr [rdi]; ret
DEFAULT, FLUSHING = 0x1F80, 0x1F80 | 0x8040


@pytest.fixture
def flushing() -> Iterator[None]:
    """Switch this thread to flush-to-zero and denormals-are-zero, as a library built with -ffast-math does."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        pytest.skip("sets the control register of x86-64")
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(LDMXCSR)
    view = ctypes.c_char.from_buffer(page)
    load = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(view))
    load(ctypes.addressof(ctypes.c_uint32(FLUSHING)))
    yield
    load(ctypes.addressof(ctypes.c_uint32(DEFAULT)))


def test_flushing_is_refused(flushing: None) -> None:
    p, g, v = (np.ones(3, np.float32) for _ in range(3))
    with pytest.raises(RuntimeError, match="flushes subnormal numbers"):
        cpu.lars_momentum(p, g, v, lr=0.1, mu=0.9)
    assert (p == 1).all() and (v == 1).all()


def test_not_flushing_is_not_refused() -> None:
    p, g, v = (np.ones(3, np.float32) for _ in range(3))
    cpu.lars_momentum(p, g, v, lr=0.1, mu=0.9)
