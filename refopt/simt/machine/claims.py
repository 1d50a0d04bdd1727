"""The device that the executor claims to be."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..base.arguments import shown, whole
from ..base.errors import LaunchError
from ..base.places import here
from ..base.state import current, one_at_a_time
from .occupancy import MULTIPROCESSORS, Multiprocessor

_INDEPENDENT = (7, 0)  # from here on the threads of a warp run independently, as they do in the executor


class Claim(NamedTuple):
    """A device: its name, compute capability and multiprocessors, and the bytes of its L2 cache and its memory."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    l2: int
    memory: int

    @property
    def has(self) -> Multiprocessor:
        """The resources of each multiprocessor."""
        return MULTIPROCESSORS[self.capability]


# From NVIDIA's white papers on Turing, A100, GA102, Ada, H100 and RTX Blackwell, and, for memory sizes, its data sheets
# of T4 and DGX B200. The B200's multiprocessors and L2 cache are as its driver reports, in whole MiB.
DEVICES = {
    known.name: known
    for known in (
        Claim("T4", (7, 5), 40, 4 << 20, 16 << 30),
        Claim("A100", (8, 0), 108, 40 << 20, 80 << 30),
        Claim("RTX 3090", (8, 6), 82, 6 << 20, 24 << 30),
        Claim("RTX 4090", (8, 9), 128, 72 << 20, 24 << 30),
        Claim("H100", (9, 0), 132, 50 << 20, 80 << 30),
        Claim("B200", (10, 0), 148, 126 << 20, 180 << 30),
        Claim("RTX 5090", (12, 0), 170, 96 << 20, 32 << 30),
    )
}
DEFAULT = DEVICES["H100"]


@contextmanager
def claim(
    device: str | None = None,
    *,
    capability: tuple[int, int] | None = None,
    multiprocessors: int | None = None,
    l2: int | None = None,
    memory: int | None = None,
) -> Iterator[Claim]:
    """Claim to be another device for a with block: host code sees that device, and its limits apply to launches.

    The environment variable SIMT_DEVICE sets the default device, in the same form as ``device``; otherwise it is an
    H100. The claim applies to all Python threads. Properties that are not given are the H100's, whatever was claimed
    before.

    Args:
        device: a name, such as "T4", or a compute capability, such as "7.5".
        capability: the compute capability, (7, 0) or later.
        multiprocessors: how many there are.
        l2, memory: bytes of the L2 cache, and of device memory.

    Raises:
        TypeError, ValueError: for an unknown device or compute capability, or a number below 1.

    >>> from refopt.simt import cuda
    >>> with claim("T4", multiprocessors=20):
    ...     device = cuda.get_current_device()
    ...     device.compute_capability, device.MULTIPROCESSOR_COUNT, device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    ((7, 5), 20, 65536)
    """
    made = DEFAULT if device is None else named("claim: device", device)
    if capability is not None:
        made = _of(_known("claim: capability", capability), made)
    sizes = {"multiprocessors": multiprocessors, "l2": l2, "memory": memory}
    given: dict[str, Any] = {name: whole(f"claim: {name}", n, 1) for name, n in sizes.items() if n is not None}
    made = made._replace(**given)
    with one_at_a_time:
        if current.inside:
            raise LaunchError("a kernel cannot claim another device", here())
        before, current.claim = current.claim, made
    try:
        yield made
    finally:
        with one_at_a_time:
            current.claim = before


def named(what: str, device: Any) -> Claim:
    """The device with a name, or the default one with another compute capability."""
    words = f"{what}: expected one of {', '.join(DEVICES)}, or a compute capability such as 7.5, got {shown(device)}"
    if not isinstance(device, str):
        raise TypeError(words)
    if device in DEVICES:
        return DEVICES[device]
    numbers = re.fullmatch(r"(\d+)\.(\d+)", device)
    if numbers is None:
        raise ValueError(words)
    return _of(_known(what, (int(numbers[1]), int(numbers[2]))), DEFAULT)


def _of(capability: tuple[int, int], device: Claim) -> Claim:
    return device._replace(name="{}.{}".format(*capability), capability=capability)


def _known(what: str, capability: Any) -> tuple[int, int]:
    """A compute capability that can be claimed."""
    if not isinstance(capability, tuple) or [type(n) for n in capability] != [int, int]:
        raise TypeError(f"{what}: expected a pair of integers, got {shown(capability)}")
    if capability < _INDEPENDENT:
        why = "from which on threads of a warp run independently"
        raise ValueError(f"{what}: expected {_INDEPENDENT} or later, {why}, got {capability}")
    if capability not in MULTIPROCESSORS:
        raise ValueError(f"{what}: expected one of {', '.join(map(str, MULTIPROCESSORS))}, got {capability}")
    return capability


current.claim = named("SIMT_DEVICE", os.environ.get("SIMT_DEVICE") or DEFAULT.name)
