"""Commands that are ended in time, with all that they have started; and with this process, if that is."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

GRACE = 5.0  # seconds to end by oneself
_live: set[subprocess.Popen] = set()


def run(
    command: Sequence[str], seconds: float, env: Mapping[str, str] | None = None, cwd: Any = None, quiet: bool = True
) -> tuple[int | str, str]:
    """Exit status of a command, or "timed out", and its output, if that is not shown as it comes.

    Args:
        command, env, cwd: as for `subprocess.Popen`.
        seconds: after which its whole session is ended.
        quiet: whether the output is returned; else it goes where this process's goes.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end_all)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if quiet else {}
    process = subprocess.Popen(command, env=env, cwd=cwd, text=True, errors="replace", start_new_session=True, **pipes)
    _live.add(process)
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output or ""
    except subprocess.TimeoutExpired:
        _end(process)
        output, _ = process.communicate()
        return "timed out", output or ""
    finally:
        _end(process)
        _live.discard(process)


def _end(process: subprocess.Popen) -> None:
    """First as one asks, since the command may have children in sessions of their own."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _end_all(*_: Any) -> None:
    for process in list(_live):
        _end(process)
    sys.exit(143)
