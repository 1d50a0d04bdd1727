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
