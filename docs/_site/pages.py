"""What is left to do when the pages are written: the way to the front page from the folder's own."""

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

FRONT = """\
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>refopt</title>
<meta http-equiv="refresh" content="0; url={url}"></head><body><a href="{url}">refopt</a></body></html>
"""


def _front(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        Path(app.outdir, "index.html").write_text(FRONT.format(url=f"{app.config.root_doc}.html"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register it."""
    app.connect("build-finished", _front)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
