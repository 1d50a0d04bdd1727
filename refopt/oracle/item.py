"""One case of a law in one dtype, and what came of it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Item(NamedTuple):
    """One case of a law in one dtype.

    Attributes:
        text: why it failed or was skipped.
        ratio: the error over the bound, if a bound was exceeded.
        example: the smallest example, for the worst case of a law.
        pattern: which elements are wrong.
        reasons: explanations, each with the share of the wrong elements that it explains; ``None`` if none were looked
            for, empty if none were found.
        command: the command that reproduces it.
        lacks: whether it was skipped on request, or because the subject has no argument for it.
        kind: empty for wrong numbers; otherwise the failure, without numbers that depend on the case.
    """

    law: str
    dtype: str
    label: str
    status: str
    text: str = ""
    ratio: float | None = None
    example: str = ""
    command: str = ""
    pattern: str = ""
    reasons: tuple[tuple[str, float], ...] | None = None
    lacks: bool = False
    kind: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Failures with one key have a line, or a cause, in common."""
        return self.law, self.kind, self.dtype


def by_key(items: Iterable[Item]) -> list[list[Item]]:
    """Items with the same key together."""
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(item.key, []).append(item)
    return list(groups.values())


def fields_of(item: Item) -> dict[str, Any]:
    """The fields of an item, for JSON."""
    named = None if item.reasons is None else [{"name": name, "share": share} for name, share in item.reasons]
    return item._asdict() | {"reasons": named}
