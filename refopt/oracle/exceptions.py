"""Laws that are left out or need not hold, with reasons: from a mapping, or from a file of lines ``L7 # why``.

An entry is the id of a law, or of a law in one dtype: ``L7``, ``L7-float32``, like the names of pytest items.
"""

import os
from collections.abc import Collection, Mapping
from typing import Any

from refopt.checks.arguments import kind_of
from refopt.checks.dtypes import SIZES
from refopt.oracle.laws import LAWS

EXPECTED = "the id of a law, or of one in a dtype, such as L7 or L7-float32"


def reasons(name: str, given: Any, known: Collection[str] = LAWS) -> dict[str, str]:
    """Why laws are excepted, by entry.

    Args:
        name: the argument's name, for errors.
        given: ``None``, reasons by entry, or the path of a file.
        known: the ids of laws.

    Raises:
        TypeError, ValueError: naming the entry, or the line of the file.
    """
    if given is None:
        return {}
    if isinstance(given, str | os.PathLike):
        return _of_file(name, given, known)
    if not isinstance(given, Mapping):
        expected = "expected reasons by the id of a law, or the path of a file"
        raise TypeError(f"check: {name}: {expected}, got {kind_of(given)}")
    for entry, reason in given.items():
        if not _is_entry(entry, known):
            raise ValueError(f"check: {name}: expected {EXPECTED}, got {entry!r}")
        if not isinstance(reason, str):
            raise TypeError(f"check: {name}[{entry!r}]: expected a reason, got {kind_of(reason)}")
    return dict(given)


def reason(excepted: Mapping[str, str], law: str, dtype: str) -> str | None:
    """Why a law is excepted in a dtype; ``None`` if it is not."""
    return excepted.get(f"{law}-{dtype}", excepted.get(law))


def covers(entry: str, law: str, dtype: str | None = None) -> bool:
    """Whether an entry covers a law, in a dtype or in any."""
    own, _, of = entry.partition("-")
    return own == law and (not of or dtype in (None, of))


def _is_entry(entry: Any, known: Collection[str]) -> bool:
    if not isinstance(entry, str):
        return False
    law, dash, dtype = entry.partition("-")
    return law in known and (not dash or dtype in SIZES)


def _of_file(name: str, path: Any, known: Collection[str]) -> dict[str, str]:
    """The reasons in a file: lines of an entry and, after ``#``, a reason; empty lines and comments are ignored."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"check: {name}: expected a readable file, got {path}: {reason}") from error
    by_entry: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        entry, _, reason = (part.strip() for part in line.partition("#"))
        if not entry:
            continue
        if not _is_entry(entry, known) or not reason or entry in by_entry:
            expected = f"{EXPECTED}, each once, and why, such as 'L7 # flushes to zero'"
            raise ValueError(f"check: {name}: {path}, line {number}: expected {expected}, got {line!r}")
        by_entry[entry] = reason
    return by_entry
