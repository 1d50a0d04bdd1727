"""Laws that need not hold, and why: from a mapping, or from a file of lines such as ``L7 # flushes to zero``."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from refopt.checks.arguments import chosen, kind_of
from refopt.oracle.laws import LAWS


def reasons(given: Any, laws: Sequence[str]) -> dict[str, str]:
    """Why each of some laws need not hold.

    Args:
        given: ``None``, reasons by the id of a law, or the path of a file.
        laws: the ids that are asked for.

    Raises:
        TypeError, ValueError: naming the law, or the line of the file.
    """
    if given is None:
        return {}
    if isinstance(given, str | os.PathLike):
        given = of_file(given)
    if not isinstance(given, Mapping):
        expected = "expected reasons by the id of a law, or the path of a file"
        raise TypeError(f"check: expected_failures: {expected}, got {kind_of(given)}")
    for law, why in given.items():
        chosen("check: expected_failures", law, LAWS)
        if not isinstance(why, str):
            raise TypeError(f"check: expected_failures[{law!r}]: expected a reason, got {kind_of(why)}")
    return {law: given[law] for law in laws if law in given}


def of_file(path: Any) -> dict[str, str]:
    """The reasons of a file: an id and, after ``#``, why; empty lines and comments between them."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"check: expected_failures: expected a file that can be read, got {path}: {why}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        law, _, why = (part.strip() for part in line.partition("#"))
        if not law:
            continue
        if law not in LAWS or not why or law in found:
            expected = "the id of a law, each once, and why, such as 'L7 # flushes to zero'"
            raise ValueError(f"check: expected_failures: {path}, line {number}: expected {expected}, got {line!r}")
        found[law] = why
    return found
