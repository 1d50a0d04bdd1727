"""Shared by all commands: exit statuses, errors that are reported in one line, and output."""

import signal
import sys
from typing import Any

# Exit statuses; from 128 on, those that shells derive from signals.
EQUAL, DIFFERS, UNUSABLE, FAILED, INTERRUPTED, BROKEN_PIPE, TERMINATED = 0, 1, 2, 3, 130, 141, 143
SEVERAL: Any = {"action": "extend", "nargs": "+"}  # an option's values, also if it is repeated
PAIRS: Any = SEVERAL | {"default": [], "metavar": "NAME=VALUE"}
ENDS = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


class Unusable(Exception):
    """A request that cannot be fulfilled, such as writing to a protected file; the message says why in one line."""


class Terminated(KeyboardInterrupt):
    """SIGTERM was received. Code that does not catch Ctrl-C does not catch this either."""


def write(text: str) -> None:
    """Write to standard output and flush it; do nothing if it is closed.

    Raises:
        BrokenPipeError: the reader has gone.
        Unusable: writing fails otherwise.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unusable(f"standard output: {error.strerror}") from error
