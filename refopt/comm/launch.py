"""Start a script once per GPU: ``python -m refopt.comm.launch -n 2 train.py ARGS``.

Each process gets ``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``, its one GPU in ``CUDA_VISIBLE_DEVICES``, and a fresh
directory in which `refopt.comm.nccl.connect` finds the others. When one fails, the others get a moment to report the
failure, and are then terminated; the status is that of the first that failed, or 128 plus the signal's number if a
signal ended it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NoReturn

from refopt.comm.rendezvous import VARIABLE

_NAP = 0.02


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the status."""
    parser = argparse.ArgumentParser(prog="python -m refopt.comm.launch", description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, required=True, metavar="N", help="how many processes, one per GPU")
    parser.add_argument("-m", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument(
        "--grace", type=float, default=3.0, help="seconds that the others have after a failure (%(default)s)"
    )
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    options = parser.parse_args(arguments)
    if options.n < 1:
        parser.error(f"-n: expected at least 1, got {options.n}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [str(i) for i in range(options.n)] if visible is None else visible.split(",")
    if len(gpus) < options.n:
        parser.error(f"-n: expected at most {len(gpus)}, the GPUs in CUDA_VISIBLE_DEVICES, got {options.n}")
    command = [sys.executable, *(["-m"] if options.m else []), options.script, *options.arguments]
    with tempfile.TemporaryDirectory(prefix="refopt-") as directory:
        processes: list[subprocess.Popen] = []
        try:
            for rank in range(options.n):
                processes.append(subprocess.Popen(command, env=_environment(rank, options.n, gpus[rank], directory)))
            return _wait(processes, options.grace)
        finally:
            _end(processes)


def _environment(rank: int, size: int, gpu: str, directory: str) -> dict[str, str]:
    return os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "CUDA_VISIBLE_DEVICES": gpu,
        VARIABLE: directory,
    }


def _wait(processes: list[subprocess.Popen], grace: float) -> int:
    """Wait for all, or for a failure and then ``grace`` seconds; returns the status of the first that failed."""
    failed, deadline = 0, float("inf")
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        failed = failed or _status(processes)
        if failed and deadline == float("inf"):
            deadline = time.monotonic() + grace
        time.sleep(_NAP)
    return failed or _status(processes)


def _status(processes: list[subprocess.Popen]) -> int:
    codes = [process.poll() for process in processes]
    code = next((code for code in codes if code), 0)
    return 128 - code if code < 0 else code


def _end(processes: list[subprocess.Popen], patience: float = 5.0) -> None:
    """Terminate the processes that still run, then kill those that do not end."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + patience
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _stop(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _stop)  # so that the clean-up runs
    sys.exit(main())
