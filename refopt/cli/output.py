"""What every command shares: exit statuses, errors that one line tells, and how it writes."""

import signal
import sys

# Exit statuses; from 128 on, what a shell makes of the signal.
EQUAL, DIFFERS, UNUSABLE, FAILED, INTERRUPTED, BROKEN_PIPE, TERMINATED = 0, 1, 2, 3, 130, 141, 143
ENDS = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


class Unusable(Exception):
    """What was asked for cannot be had, such as a file that cannot be written; says why in one line."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came. Whoever lets Ctrl-C pass lets it pass as well."""


def write(text: str) -> None:
    """Write to standard output, at once; nowhere if it is closed.

    Raises:
        BrokenPipeError: nobody reads it any more.
        Unusable: it cannot be written.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unusable(f"standard output: {error.strerror}") from error
