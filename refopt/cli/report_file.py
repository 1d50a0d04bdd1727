"""The files that commands write, each completely or not at all."""

import contextlib
import os
import stat
import sys
from types import TracebackType
from typing import Any, Self

from refopt.checks.files import replaced
from refopt.cli.output import Unusable, write

ROOM = 1 << 20  # bytes, more than a report needs
BEGINNING = "{"  # of a report; written first as a test where no temporary file is possible
SPECIAL = ("/dev/", "/proc/")  # paths whose names refer to open files


class Target:
    """The destination of a report, tested before any work is done.

    A file is replaced at the end; until then, an existing one is unchanged. Other than regular files, such as pipes,
    are written to directly; ``-`` is standard output, and ``None`` no file.

    Args:
        path: the destination.
        option: the command's option that names it, for errors.
        beginning: of what will be written.

    Raises:
        Unusable: it cannot be written, or there is no space for a report.
    """

    def __init__(self, path: str | None, option: str = "--json", beginning: str = BEGINNING) -> None:
        self.path, self._option, self._begun, self._file = path, option, beginning, None
        if path is None:
            return
        try:
            if path == "-":
                if sys.stdout is None:
                    raise OSError(0, "standard output is closed")
                write(beginning)
                return
            if not path or path.endswith(os.sep):
                raise OSError(0, "expected the name of a file")
            mode = os.stat(path).st_mode if os.path.exists(path) else None
            if (mode is None or stat.S_ISREG(mode)) and not os.path.abspath(path).startswith(SPECIAL):
                if mode is not None:
                    os.close(os.open(path, os.O_WRONLY))  # fails if the file is protected
                self._replace(b" " * ROOM, tried=True)
            else:
                self._file = open(path, "wb", buffering=0)  # noqa: SIM115
                _write(self._file, beginning.encode())
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:
            self.__exit__(None, None, None)
            raise self._unusable(error) from error

    def write(self, text: str | bytes) -> None:
        """Write the report, which begins as announced, to its destination."""
        if self.path is None:
            return
        if self.path == "-":
            write(str(text).removeprefix(self._begun))
            return
        data = text.encode() if isinstance(text, str) else text
        try:
            if self._file is None:
                self._replace(data)
            else:
                _write(self._file, data.removeprefix(self._begun.encode()))
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._unusable(error) from error

    def _replace(self, data: bytes, tried: bool = False) -> None:
        """Replace the file, or only try to."""
        with contextlib.suppress(_Tried), replaced(self.path) as file:
            file.write(data)
            if tried:
                file.flush()
                raise _Tried

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _unusable(self, error: OSError | ValueError) -> Unusable:
        reason = error.strerror if isinstance(error, OSError) else error
        return Unusable(f"{self._option}: cannot write to {self.path!r}: {reason}")


class _Tried(Exception):
    """A file could have been replaced."""


def save(path: str, option: str, text: str | bytes) -> None:
    """Write what an option asked for to its file."""
    with Target(path, option, "") as target:
        target.write(text)


def _write(file: Any, data: bytes) -> None:
    """Write all data: an unbuffered write may write only a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
