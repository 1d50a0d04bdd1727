"""Words and lines of a report."""

import textwrap

from refopt.oracle.diagnosis import ENOUGH, Cause

MOST = 5  # printed reasons
WIDE = 300  # the most characters of a line in a short report
NONE = "none of the hypotheses explains it"


def head(ratio: float | None) -> str:
    """The size of an error, as the start of a line."""
    return f"{ratio:.3g} times the bound: " if ratio is not None else ""


def kind(cause: Cause) -> str:
    """How sure a cause is."""
    return "cause" if cause.certain else "possibly" if cause.share >= ENOUGH else f"in part ({percent(cause.share)})"


def short(line: str) -> str:
    """A line, shortened if it is too long."""
    return line if len(line) <= WIDE else textwrap.shorten(line, WIDE, placeholder=" ...")


def why(reasons: tuple[tuple[str, float], ...] | None) -> list[str]:
    """Explanations of a failure, the best first."""
    if reasons is None:
        return []
    if not reasons:
        return [f"  why: {NONE}"]
    return [f"  why: {name} ({percent(share)} of the wrong elements)" for name, share in reasons[:MOST]]


def percent(share: float) -> str:
    """A share of elements, 100 % only if it is all of them."""
    return "100 %" if share == 1 else f"{min(100 * share, 99.9):.3g} %"


def some(labels: list[str], most: int = 4) -> str:
    """The first labels, and how many more there are."""
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return "; ".join(labels[:most]) + more
