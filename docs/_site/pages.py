"""What the theme does not do: a sidebar of the front page's entries alone, and the way from the folder's own page."""

from pathlib import Path
from typing import Any

from furo.navigation import get_navigation_tree
from sphinx.application import Sphinx

FRONT = """\
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>refopt</title>
<meta http-equiv="refresh" content="0; url={url}"></head><body><a href="{url}">refopt</a></body></html>
"""


def _sidebar(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The pages that the front page lists, by path; what these list in turn is linked from them."""
    if "toctree" in context:
        listed = context["toctree"](collapse=False, titles_only=True, maxdepth=1, includehidden=True)
        context["furo_navigation_tree"] = get_navigation_tree(listed)


def _front(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        Path(app.outdir, "index.html").write_text(FRONT.format(url=f"{app.config.root_doc}.html"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register both."""
    app.connect("html-page-context", _sidebar, priority=900)  # after the theme's own
    app.connect("build-finished", _front)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
