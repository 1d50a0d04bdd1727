"""What some tests need of the machine; without it they are skipped, with the reason."""

import functools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from refopt.gpu import target

MOST = 4  # ranks that a test starts


def compiler():
    """A compiler of kernels to PTX. It takes no GPU."""
    if reason := target.no_compiler():
        pytest.skip(f"compiles no PTX: {reason}", allow_module_level=True)


def ranks():
    """MPI, by an mpiexec that starts processes of mpi4py's library."""
    if reason := no_ranks(mpiexec()):
        pytest.skip(f"starts no ranks: {reason}")


def mpiexec():
    """That of the environment, which goes with its mpi4py, or the one on the path; None without either."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


@functools.cache
def no_ranks(command, patience=60):
    """Why a command starts no ranks: Open MPI's refuses root and more ranks than cores, another library's counts 1."""
    if command is None:
        return "mpiexec was not found"
    # In one write, since those of several ranks may come mixed.
    hello = "import sys; from mpi4py import MPI; sys.stdout.write(f'rank of {MPI.COMM_WORLD.Get_size()}\\n')"
    try:
        with subprocess.Popen(
            [command, "-n", str(MOST), sys.executable, "-c", hello], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=patience)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"{command} does not end in {patience} s"
    except OSError as error:
        return f"{command} cannot be run: {error.strerror}"
    if process.returncode or output.count(f"rank of {MOST}") != MOST:
        return f"{command} ends with status {process.returncode}: {textwrap.shorten(output, 200)}"
    return ""
