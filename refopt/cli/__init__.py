"""The command `refopt`: what it can do, how it starts, and how it ends, whatever comes.

Each command is a file or a package, which `refopt.cli.commands` lists. NumPy and the rest are imported only after `run`
has installed its signal handlers, so that Ctrl-C gives no traceback even then.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from refopt.cli.output import (
    BROKEN_PIPE,
    DIFFERS,
    ENDS,
    EQUAL,
    FAILED,
    INTERRUPTED,
    TERMINATED,
    UNUSABLE,
    Terminated,
    Unusable,
    write,
)

__all__ = [
    "BROKEN_PIPE", "DIFFERS", "ENDS", "EQUAL", "FAILED", "INTERRUPTED", "TERMINATED", "UNUSABLE", "Terminated",
    "Unusable", "main", "run",
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status.

    0 if all is equal or right, 1 if anything differs or is wrong, 2 for what cannot be used, arguments or files, 3 if
    the command fails itself, 130 for Ctrl-C, 141 if whoever reads its output goes away, 143 for SIGTERM.
    """
    try:
        from refopt.cli import commands

        try:
            status = commands.run(argv)
        except SystemExit as end:  # by argparse, for help or for wrong usage
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
    except Exception:
        import traceback

        traceback.print_exc()
        return FAILED


def run() -> NoReturn:
    """`main` as a process, to its very end."""
    _on_signals(_leave)
    _on_signals(_interrupt)
    try:
        status = main()
    except KeyboardInterrupt as error:  # a signal in the moment that `main` was coming or going
        status = TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    _on_signals(_leave)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:  # told before; what is left in it must not be tried again by the interpreter as it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(status)


def _on_signals(handler: Callable[[int, Any], None]) -> None:
    for signum in ENDS:
        signal.signal(signum, handler)


def _interrupt(signum: int, frame: Any) -> NoReturn:
    """End by way of the clean-up, once."""
    _on_signals(_ignore)
    raise KeyboardInterrupt if signum == signal.SIGINT else Terminated


def _ignore(signum: int, frame: Any) -> None:
    """The clean-up is under way, and short."""


def _leave(signum: int, frame: Any) -> NoReturn:
    """End where there is nothing to clean up."""
    os._exit(ENDS[signal.Signals(signum)])


def _say(text: str, status: int) -> int:
    try:
        if sys.stderr is not None:
            print(f"refopt: {text}", file=sys.stderr, flush=True)
    except OSError:
        pass
    return status
