"""Commands of several ranks, run to their end or to a time-out."""

import os
import signal
import subprocess
import sys

import pytest


def run(command, case, limit, cwd=None, **environment):
    """Status and output of a command; if it hangs, all its processes are killed."""
    with subprocess.Popen(
        command, cwd=cwd, text=True, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Unbuffered, since reports come line by line.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": ""} | environment,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{case} hangs:\n{output}")
    return process.returncode, output
