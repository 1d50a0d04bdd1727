"""Linked kernels on disk: a process that finds its kernels there imports no compiler and compiles nothing.

They are in ``refopt`` under the user's cache folder, or in the folder that ``REFOPT_CACHE`` names; ``REFOPT_CACHE=0``
disables the cache. An entry is a line of JSON and a cubin, named by a digest of everything that the kernel is made
from. Files with other content are ignored. Processes may share a folder: an entry is complete or absent. Beyond `MOST`
bytes, the least recently used entries are removed.
"""

import contextlib
import functools
import hashlib
import json
import os
import sys
import threading
import warnings
from collections import Counter
from pathlib import Path

from refopt import __version__
from refopt.gpu import notes
from refopt.gpu.compiler import Linked
from refopt.gpu.compiling import PACKAGES
from refopt.gpu.target import Compilable

FORMAT = 1
MOST = 256 << 20  # a kernel has 10 to 60 KB
SUFFIX, UNFINISHED = ".kernel", ".part"

origins: Counter[str] = Counter()  # how many kernels of this process were "kept", and how many "compiled"


def folder() -> Path | None:
    """The folder of the entries, which need not exist; None if the cache is disabled."""
    asked = os.environ.get("REFOPT_CACHE")
    if asked:
        return None if asked == "0" else Path(asked).absolute()
    given = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "refopt"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "refopt" if os.path.isabs(home) else None


def is_empty() -> bool:
    """Whether the folder has no file that could be an entry."""
    where = folder()
    return where is None or not any(name.endswith(SUFFIX) for name in _names(where))


def key(kernel: Compilable, signature: tuple, capability: tuple[int, int]) -> str:
    """A digest of everything that a linked kernel is made from; "" if the kernel has a value without a digest."""
    try:
        made_from = notes.made_from(kernel, signature, whole=True)
    except LookupError:
        return ""
    parts = FORMAT, __version__, made_from, kernel.wanted(capability), _made_by()
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:40]


@functools.lru_cache
def _made_by() -> tuple:
    """The compiler, without importing it: its packages, refopt's part of it, and its environment settings."""
    import importlib.metadata

    packages = []
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages.append((name, importlib.metadata.version(name)))
    texts = [Path(__file__).with_name(name).read_bytes() for name in ("by_numba.py", "target.py")]
    toolkit = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    settings = sorted((name, value) for name, value in os.environ.items() if name.startswith("NUMBA_"))
    own = hashlib.sha256(b"".join(texts)).hexdigest()
    return packages, own, os.path.realpath(toolkit), settings, sys.version_info[:2]


def read(key: str) -> Linked | None:
    """The entry of a key; None if there is no usable one."""
    if not key or (where := folder()) is None:
        return None
    path = where / (key + SUFFIX)
    try:
        head, _, cubin = path.read_bytes().partition(b"\n")
        about = json.loads(head)
        if about["key"] != key or about["sha256"] != hashlib.sha256(cubin).hexdigest():
            raise ValueError("its content has changed")
        entry = Linked(str(about["entry"]), cubin)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _tell(f"{path} is not used ({type(error).__name__}: {error})")
        return None
    with contextlib.suppress(OSError):  # another user's file, whose time stays unchanged
        os.utime(path)
    return entry


def write(key: str, name: str, code: Linked) -> None:
    """Store a kernel under a key, if possible."""
    if not key or (where := folder()) is None:
        return
    digest = hashlib.sha256(code.cubin).hexdigest()
    head = {"key": key, "kernel": name, "entry": code.entry, "sha256": digest}
    unfinished = where / f"{key}-{os.getpid()}-{threading.get_ident()}{UNFINISHED}"
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            unfinished.write_bytes(json.dumps(head).encode() + b"\n" + code.cubin)
            os.replace(unfinished, where / (key + SUFFIX))
        finally:
            unfinished.unlink(missing_ok=True)
        _forget(where)
    except OSError as error:
        _tell(f"kernels are not cached ({type(error).__name__}: {error})")


def _forget(where: Path) -> None:
    """Remove the least recently used entries until the rest is small enough; other processes may do so, too."""
    found = []
    for name in _names(where):
        if name.endswith((SUFFIX, UNFINISHED)):
            try:
                about = (where / name).stat()
            except FileNotFoundError:
                continue
            found.append((about.st_mtime, about.st_size, name))
    left = sum(size for _, size, _ in found)
    for _, size, name in sorted(found):
        if left <= MOST:
            break
        (where / name).unlink(missing_ok=True)
        left -= size


def _names(where: Path) -> list[str]:
    try:
        return os.listdir(where)
    except OSError:
        return []


_told: list[str] = []


def _tell(what: str) -> None:
    """Warn of a problem, once in a process."""
    if not _told:
        _told.append(what)
        warnings.warn(f"refopt's kernels on disk: {what}; REFOPT_CACHE names another folder, or 0", stacklevel=2)
