"""Starts the command `refopt`, and returns its exit status.

Each command is a module or a package, listed in `refopt.cli.commands`. NumPy and the rest are imported only after `run`
has installed its signal handlers, so that Ctrl-C never prints a traceback.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from refopt.cli.output import BROKEN_PIPE, ENDS, FAILED, INTERRUPTED, TERMINATED, UNUSABLE, Terminated, Unusable, write

__all__ = ["Terminated", "Unusable", "main", "run"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status.

    0 if everything is equal or right, 1 if anything differs or is wrong, 2 for arguments or files that cannot be used,
    3 if the command itself fails, 130 for Ctrl-C, 141 if the reader of its output has gone, 143 for SIGTERM.
    """
    try:
        from refopt.cli import commands

        try:
            status = commands.run(argv)
        except SystemExit as end:  # from argparse, for help or wrong usage
            status = int(end.code or 0)
        write("")
        return status
    except Terminated:
        return _say("terminated", TERMINATED)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return BROKEN_PIPE
    except Unusable as error:
        return _say(str(error), UNUSABLE)
    except Exception as error:
        if isinstance(error, ImportError) and not (error.name or "").startswith("refopt"):  # but another library
            return _say(str(error), UNUSABLE)
        import traceback

        traceback.print_exc()
        return FAILED


def run() -> NoReturn:
    """Run `main` and exit the process."""
    _on_signals(_leave)
    _on_signals(_interrupt)
    try:
        status = main()
    except KeyboardInterrupt as error:  # a signal while `main` was being entered or left
        status = TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    _on_signals(_leave)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:  # already reported; the interpreter must not try to flush it again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(status)


def _on_signals(handler: Callable[[int, Any], None]) -> None:
    for signum in ENDS:
        signal.signal(signum, handler)


def _interrupt(signum: int, frame: Any) -> NoReturn:
    """Raise an exception, so that cleanup runs; only for the first signal."""
    _on_signals(_ignore)
    raise KeyboardInterrupt if signum == signal.SIGINT else Terminated


def _ignore(signum: int, frame: Any) -> None:
    """Do nothing: cleanup is in progress, and short."""


def _leave(signum: int, frame: Any) -> NoReturn:
    """Exit immediately: there is nothing to clean up."""
    os._exit(ENDS[signal.Signals(signum)])


def _say(text: str, status: int) -> int:
    try:
        if sys.stderr is not None:
            print(f"refopt: {text}", file=sys.stderr, flush=True)
    except OSError:
        pass
    return status
