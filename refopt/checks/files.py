"""Files that are written whole or not at all."""

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(path: Any) -> Iterator[Any]:
    """A new file, open for writing bytes, that takes the place of another one, if any, at the end.

    It is next to its place until then. After an exception it is gone, and what was there is unchanged. It has the
    permissions of the file that it replaces.
    """
    place = os.path.realpath(path)
    beside = os.path.join(os.path.dirname(place), f".refopt-{os.getpid()}-{threading.get_ident()}.part")
    with open(beside, "xb") as file, contextlib.ExitStack() as stack:
        stack.callback(os.unlink, beside)
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(place, beside)
        yield file
        file.flush()
        os.fsync(file.fileno())
        os.replace(beside, place)
        stack.pop_all()
