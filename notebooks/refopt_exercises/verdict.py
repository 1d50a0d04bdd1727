"""What a check says."""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """Whether an answer passes, and the words for it. In a notebook the words are shown.

    Attributes:
        ok: whether it passes.
        text: what is wrong, and where; or that all is right, with the score.
    """

    ok: bool
    text: str

    def __repr__(self) -> str:
        return self.text


def right(text: str) -> Verdict:
    """An answer that passes."""
    return Verdict(True, f"Right.\n{text}".rstrip())


def wrong(text: str) -> Verdict:
    """An answer that does not, yet."""
    return Verdict(False, f"Not yet. {text}".rstrip())
