"""Occupancy: how many warps of a kernel are resident on a multiprocessor at once."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..base.arguments import shown, whole, wholes
from ..base.errors import LaunchError
from ..base.state import current
from ..base.threads import WARP_SIZE

MAX_THREADS = 1024  # of a block
MAX_REGISTERS = 255  # of a thread
PARTITIONS = 4  # of a multiprocessor, among which its warps and registers are divided
REGISTERS = 65536  # of a multiprocessor, and the maximum for a block
_REGISTER_UNIT = 256  # granularity in which a warp is allocated registers


class Multiprocessor(NamedTuple):
    """The resources of a multiprocessor. Shared memory is in bytes: in total, for one block, and the allocation unit.

    The driver reserves ``reserved`` bytes per block.
    """

    threads: int
    blocks: int
    shared: int
    shared_of_block: int
    shared_unit: int = 128
    reserved: int = 1024


def _kib(threads: int, blocks: int, shared: int, shared_of_block: int, *others: int) -> Multiprocessor:
    return Multiprocessor(threads, blocks, 1024 * shared, 1024 * shared_of_block, *others)


# CUDA C++ Programming Guide, section Compute Capabilities, and NVIDIA's cuda_occupancy.h
MULTIPROCESSORS = {
    (7, 0): _kib(2048, 32, 96, 96, 256, 0),
    (7, 5): _kib(1024, 16, 64, 64, 256, 0),
    (8, 0): _kib(2048, 32, 164, 163),
    (8, 6): _kib(1536, 16, 100, 99),
    (8, 7): _kib(1536, 16, 164, 163),
    (8, 9): _kib(1536, 24, 100, 99),
    (9, 0): _kib(2048, 32, 228, 227),
    (10, 0): _kib(2048, 32, 228, 227),
    (10, 3): _kib(2048, 32, 228, 227),
    (11, 0): _kib(1536, 24, 228, 227),
    (12, 0): _kib(1536, 24, 100, 99),
    (12, 1): _kib(1536, 24, 100, 99),
}


class Occupancy(NamedTuple):
    """The occupancy of a multiprocessor.

    Attributes:
        blocks, warps: how many are resident at once.
        share: the warps as a share of the maximum, from 0 to 1.
        limits: the resources that leave no room for another block: threads, blocks, registers or shared memory.
    """

    blocks: int
    warps: int
    share: float
    limits: tuple[str, ...]


def occupancy(
    block: Any, registers: int, shared_bytes: int = 0, capability: tuple[int, int] | None = None
) -> Occupancy:
    """How many blocks and warps are resident on a multiprocessor, as by NVIDIA's occupancy calculator.

    Args:
        block: the block's threads: a number, or up to three extents.
        registers: per thread, as reported by ptxas or `regs_per_thread` of a compiled kernel.
        shared_bytes: per block, static and dynamic together.
        capability: the compute capability, such as (9, 0) for H100 and H200; by default that of the claimed device.

    Raises:
        LaunchError: a block that does not fit on a multiprocessor of that capability; it is a ValueError.
        TypeError, ValueError: an argument that is not a number, or an unknown compute capability.

    >>> occupancy(256, 40)
    Occupancy(blocks=6, warps=48, share=0.75, limits=('registers',))
    """
    if capability is None:
        capability = current.claim.capability
    if capability not in MULTIPROCESSORS:
        raise ValueError(f"capability: expected one of {', '.join(map(str, MULTIPROCESSORS))}, got {shown(capability)}")
    extents = wholes("block", block)
    threads, registers = math.prod(extents), whole("registers", registers)
    shared_bytes = whole("shared_bytes", shared_bytes)
    has = MULTIPROCESSORS[capability]
    if not 1 <= len(extents) <= 3 or not 1 <= threads <= MAX_THREADS:
        raise LaunchError(f"block: expected 1 to {MAX_THREADS} threads in up to three dimensions, got {shown(block)}")
    if registers > MAX_REGISTERS:
        raise LaunchError(f"registers: expected at most {MAX_REGISTERS} per thread, got {registers}")
    if shared_bytes > has.shared_of_block:
        raise LaunchError(f"shared_bytes: expected at most {has.shared_of_block} per block, got {shared_bytes}")
    warps = -(-threads // WARP_SIZE)
    of_warp = _rounded(registers * WARP_SIZE, _REGISTER_UNIT)
    # A launch is refused if its warps, spread evenly over the partitions, would need too many registers.
    if of_warp * _rounded(warps, PARTITIONS) > REGISTERS:
        raise LaunchError(f"registers: a block of {threads} threads with {registers} each needs more than {REGISTERS}")
    fits = {"threads": has.threads // WARP_SIZE // warps, "blocks": has.blocks}
    if of_warp:  # each partition has its own registers
        fits["registers"] = REGISTERS // PARTITIONS // of_warp * PARTITIONS // warps
    if shared_bytes + has.reserved:
        fits["shared memory"] = has.shared // _rounded(shared_bytes + has.reserved, has.shared_unit)
    blocks = min(fits.values())
    limits = tuple(name for name, most in fits.items() if most == blocks)
    return Occupancy(blocks, blocks * warps, blocks * warps / (has.threads // WARP_SIZE), limits)


def resident_blocks(block: Any, shared_bytes: int) -> int:
    """The most blocks that the claimed device holds at once; registers, which are unknown here, may allow fewer."""
    return current.claim.multiprocessors * occupancy(block, 0, shared_bytes).blocks


def _rounded(value: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-value // unit) * unit
