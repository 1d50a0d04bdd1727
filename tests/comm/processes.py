"""Commands of several ranks, run to their end or to a time-out."""

import os
import signal
import subprocess
import sys
import time

import pytest


def run(command, case, limit, cwd=None, **environment):
    """Status and output of a command, and the seconds it took; if it hangs, all its processes are killed."""
    start = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=cwd,
        # Unbuffered, since reports come line by line.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": ""} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{case} hangs:\n{output}")
    return process.returncode, output, time.monotonic() - start
