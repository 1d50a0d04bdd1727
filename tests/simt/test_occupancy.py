"""Occupancy against NVIDIA's own calculator, the header that comes with CUDA, and against published figures."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refopt import simt
from refopt.simt.machine.occupancy import MULTIPROCESSORS

HEADERS = [
    *(path for folder in sys.path for path in Path(folder).glob("nvidia/*/include/cuda_occupancy.h")),
    *Path("/usr/local").glob("cuda*/include/cuda_occupancy.h")]
PROGRAM = r"""
#include <stdio.h>
#include <cuda_occupancy.h>
int main() {
    int major, minor, threads, regs, block; size_t shared, optin, reserved, use;
    while (scanf("%d %d %d %zu %zu %zu %d %d %zu", &major, &minor, &threads, &shared, &optin, &reserved, &block, &regs,
                 &use) == 9) {
        struct cudaOccDeviceProp p = {0}; struct cudaOccFuncAttributes a = {0}; struct cudaOccDeviceState s = {0};
        cudaOccResult r = {0};
        p.computeMajor = major; p.computeMinor = minor; p.maxThreadsPerBlock = 1024;
        p.maxThreadsPerMultiprocessor = threads; p.regsPerBlock = p.regsPerMultiprocessor = 65536; p.warpSize = 32;
        p.sharedMemPerBlock = 49152; p.sharedMemPerMultiprocessor = shared; p.numSms = 1;
        p.sharedMemPerBlockOptin = optin; p.reservedSharedMemPerBlock = reserved;
        a.maxThreadsPerBlock = 1024; a.numRegs = regs; a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        a.maxDynamicSharedSizeBytes = optin; a.numBlockBarriers = 1; s.carveoutConfig = SHAREDMEM_CARVEOUT_DEFAULT;
        int e = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, block, use);
        printf("%d %d %d\n", e, r.activeBlocksPerMultiprocessor, r.limitingFactors);
    }
}
"""
FACTORS = {1: "threads", 2: "registers", 4: "shared memory", 8: "blocks"}


@pytest.mark.skipif(not HEADERS or not shutil.which("gcc"), reason="no cuda_occupancy.h, or no compiler of C")
def test_against_nvidias_calculator(tmp_path):
    (tmp_path / "judge.c").write_text(PROGRAM)
    command = ["gcc", "-w", f"-I{HEADERS[0].parent}", "judge.c", "-o", "judge"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    random, rows = np.random.default_rng(0), []
    for capability, has in MULTIPROCESSORS.items():
        for _ in range(1500):
            block, registers = int(random.integers(1, 1025)), int(random.integers(0, 256))
            use = int(random.choice([0, random.integers(0, 2000), random.integers(0, has.shared_of_block + 1)]))
            rows.append((capability, has, block, registers, use))
    lines = (
        f"{c[0]} {c[1]} {has.threads} {has.shared} {has.shared_of_block} {has.reserved} {block} {registers} {use}"
        for c, has, block, registers, use in rows)
    told = subprocess.run(["./judge"], cwd=tmp_path, input="\n".join(lines), stdout=-1, text=True, timeout=60).stdout
    answers = [tuple(map(int, line.split())) for line in told.splitlines()]
    assert len(answers) == len(rows)
    refused = 0
    for (capability, _, block, registers, use), (error, blocks, factors) in zip(rows, answers, strict=True):
        assert error == 0
        if blocks == 0:
            refused += 1
            with pytest.raises(simt.LaunchError):
                simt.occupancy(block, registers, use, capability)
            continue
        limits = {name for bit, name in FACTORS.items() if bit & factors}
        found = simt.occupancy(block, registers, use, capability)
        assert (found.blocks, set(found.limits)) == (blocks, limits), (capability, block, registers, use)
    assert 0 < refused < len(rows) / 2


# From the CUDA C++ Programming Guide and the spreadsheet of the CUDA Occupancy Calculator.
@pytest.mark.parametrize(("arguments", "blocks", "share"), [
    ((1024, 32, 0, (9, 0)), 2, 1.0), ((1024, 64, 0, (9, 0)), 1, 0.5), ((256, 255, 0, (9, 0)), 1, 0.125),
    ((32, 16, 0, (9, 0)), 32, 0.5), ((128, 32, 48 * 1024, (9, 0)), 4, 0.25), ((256, 32, 0, (7, 5)), 4, 1.0),
    ((33, 32, 0, (9, 0)), 32, 1.0), ((1024, 32, 0, (8, 6)), 1, 2 / 3), (((16, 16), 37, 0, (8, 0)), 6, 0.75)])
def test_known_values(arguments, blocks, share):
    found = simt.occupancy(*arguments)
    assert (found.blocks, found.share) == (blocks, share)


@pytest.mark.parametrize(("arguments", "error", "words"), [
    ((0, 32), ValueError, "block: expected 1 to 1024 threads"), ((1025, 32), ValueError, "got 1025"),
    ((128, 256), ValueError, "registers: expected at most 255"),
    ((1024, 65), ValueError, "registers: a block of 1024 threads with 65 each needs more than 65536"),
    ((128, 32, 227 * 1024 + 1), ValueError, "shared_bytes: expected at most 232448 per block, got 232449"),
    ((128, 32, 0, (5, 1)), ValueError, r"capability: expected one of .*\(9, 0\).*, got \(5, 1\)"),
    ((128.0, 32), TypeError, "block: expected an integer, got 128.0"),
    ((128, 32.0), TypeError, "registers: expected an integer")])
def test_refused(arguments, error, words):
    with pytest.raises(error, match=re.compile(words)):
        simt.occupancy(*arguments)
