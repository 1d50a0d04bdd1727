"""The file of a report in JSON, which is written completely or not at all."""

import contextlib
import os
import stat
import sys
from types import TracebackType
from typing import Any, Self

from refopt.cli.output import Unusable, write

ROOM = 1 << 20  # bytes, more than a report needs
BEGINNING = "{"  # of a report; written first as a test where no temporary file is possible
SPECIAL = ("/dev/", "/proc/")  # paths whose names refer to open files


class Target:
    """The destination of a report, tested before any work is done.

    A file is written next to its destination and renamed at the end; until then, an existing file is unchanged. Other
    than regular files, such as pipes, are written to directly; ``-`` is standard output, and ``None`` no report.

    Raises:
        Unusable: it cannot be written, or there is no space for a report.
    """

    _place: str

    def __init__(self, path: str | None) -> None:
        self.path, self._beside, self._file = path, "", None
        if path is None:
            return
        try:
            if path == "-":
                if sys.stdout is None:
                    raise OSError(0, "standard output is closed")
                write(BEGINNING)
                return
            if not path or path.endswith(os.sep):
                raise OSError(0, "expected the name of a file")
            mode = _mode(path)
            if (mode is None or stat.S_ISREG(mode)) and not os.path.abspath(path).startswith(SPECIAL):
                self._file = self._open_beside(path, mode)
            else:
                self._file = open(path, "wb", buffering=0)  # noqa: SIM115
                _write(self._file, BEGINNING.encode())
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:
            self._drop()
            raise self._unusable(error) from error

    def _open_beside(self, path: str, mode: int | None) -> Any:
        self._place = os.path.realpath(path)
        if mode is not None:
            os.close(os.open(self._place, os.O_WRONLY))  # fails if the file is protected
        beside = os.path.join(os.path.dirname(self._place), f".refopt-{os.getpid()}.json")
        file = os.fdopen(os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), "wb", buffering=0)
        self._beside = beside
        if mode is not None:
            os.chmod(beside, stat.S_IMODE(mode))
        try:
            _write(file, b" " * ROOM)
        except OSError:
            file.close()
            raise
        return file

    def write(self, text: str) -> None:
        """Write the report, which begins with `BEGINNING`, to its destination."""
        if self.path is None:
            return
        if self._file is None:
            write(text.removeprefix(BEGINNING))
            return
        try:
            if self._beside:
                self._file.seek(0)
                _write(self._file, text.encode())
                self._file.truncate()
                os.fsync(self._file.fileno())
                os.replace(self._beside, self._place)
                self._beside = ""
            else:
                _write(self._file, text.removeprefix(BEGINNING).encode())
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._unusable(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._drop()

    def _drop(self) -> None:
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        with contextlib.suppress(OSError):
            if self._beside:
                os.unlink(self._beside)
                self._beside = ""

    def _unusable(self, error: OSError | ValueError) -> Unusable:
        reason = error.strerror if isinstance(error, OSError) else error
        return Unusable(f"--json: cannot write to {self.path!r}: {reason}")


def _mode(path: str) -> int | None:
    """The mode of a file; None if it does not exist."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _write(file: Any, data: bytes) -> None:
    """Write all data: an unbuffered write may write only a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
