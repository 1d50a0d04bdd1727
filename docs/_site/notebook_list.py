"""The directive ``notebooks``: a table of contents of the notebooks in a folder, in the order of their numbers."""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.directives.other import TocTree

PAGES = ".ipynb", ".md"


def in_order(folder: Path) -> list[Path]:
    """The notebooks and pages of a folder, in order; none if there is no such folder."""
    found = [x for x in folder.glob("*") if x.suffix in PAGES] if folder.is_dir() else []
    return sorted(found, key=_place)


def _place(path: Path) -> tuple[bool, list[int | str]]:
    """Where a page stands: what explains the others comes first, then they follow by number."""
    return path.stem != "README", [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", path.stem)]


class Notebooks(TocTree):
    """A ``toctree`` whose only line is a folder."""

    def run(self) -> list[nodes.Node]:
        """The table, or nothing for a folder that is missing or empty."""
        root = Path(self.env.srcdir)
        names = [f"/{x.relative_to(root).with_suffix('')}" for x in in_order(root / self.content[0].strip())]
        self.content = StringList(names, self.env.docname)
        return super().run() if names else []


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("notebooks", Notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
