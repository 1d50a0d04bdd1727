"""Sections of pages that are made of records, between ``<!-- NAME -->`` and ``<!-- end -->``."""

import re
from collections.abc import Iterable, Sequence


def with_section(page: str, name: str, text: str) -> str:
    """The page with another text in a section; raises ValueError unless it has one of that name."""
    section = rf"(?s)(<!-- {name} -->\n).*?(\n<!-- end -->)"
    changed, count = re.subn(section, lambda found: found[1] + text + found[2], page)
    if count != 1:
        raise ValueError(f"with_section: expected a page with one section {name}, got {count}")
    return changed


def table(lines: Iterable[Sequence[str]]) -> str:
    """Lines of cells as a table of Markdown; the second line has the alignments."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def figures(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A table of Markdown whose first columns are text, and the others figures."""
    return table([head, ["---"] * texts + ["---:"] * (len(head) - texts), *rows])


def aligned(lines: Sequence[Sequence[str]], indent: str = "    ") -> list[str]:
    """Lines of cells as text, below each other; the first cell to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = []
    for first, *others in lines:
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        shown.append((indent + "  ".join(cells)).rstrip())
    return shown
