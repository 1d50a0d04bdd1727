"""Pages of the repository's files that the site links to, such as a kernel or a record, with their lines numbered."""

import importlib
import inspect
import os
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import undecorate
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[2]
FOLDER = "source"
LONGEST = 400_000  # bytes of a file that has a page
# Without the theme's navigation, which takes longer for each of hundreds of files than the file itself.
PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title} - refopt</title>
<link rel="stylesheet" href="{root}/_static/pygments.css"><link rel="stylesheet" href="{root}/_static/source.css">
</head><body data-theme="auto">
<script>document.body.dataset.theme = localStorage.getItem("theme") || "auto"</script>
<header><a href="{root}/{front}.html">refopt</a> / <b>{title}</b></header>
{body}
</body></html>
"""
_HIDDEN = {"__pycache__", ".ipynb_checkpoints"}


LINKS = addnodes.download_reference, addnodes.pending_xref


class ToSources(SphinxTransform):
    """Links to files that are no pages of the site lead to pages of their sources."""

    default_priority = 5  # before files are collected as downloads

    def apply(self, **keywords: Any) -> None:
        """Replace the links of a page."""
        for node in [x for kind in LINKS for x in self.document.findall(kind)]:
            path = _target(self.env, node)
            if path is not None:
                _linked(self.env).setdefault(self.env.docname, set()).add(path)
                href = os.path.relpath(_page_of(path), Path(self.env.docname).parent) + ".html"
                link = nodes.reference("", "", *node.children, refuri=href, internal=True)
                node.replace_self(link)


def of_name(module: str, name: str) -> str | None:
    """Where the source of a name begins, from a page of docs/; nothing if it is no function and no class of refopt."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = undecorate(inspect.getattr_static(found, part, None))  # of a decorator of PyTorch's, which is mocked
        found = getattr(found, "__func__", getattr(found, "fget", None) or found)
    found = inspect.unwrap(found) if callable(found) else found
    try:
        path = Path(inspect.getsourcefile(found) or "").resolve().relative_to(ROOT)
        line = inspect.getsourcelines(found)[1]
    except (TypeError, OSError, ValueError):
        return None
    _OF_NAMES.add(path)
    return f"../{_page_of(path)}.html#L-{line}"


def of_module(module: Any) -> str:
    """The page of a module's source, from a page of docs/."""
    return of_file(Path(module.__file__))


def of_file(path: Path) -> str:
    """The page of a file, from a page of docs/."""
    path = path.resolve().relative_to(ROOT)
    _OF_NAMES.add(path)
    return f"../{_page_of(path)}.html"


_OF_NAMES: set[Path] = set()


def _target(env: BuildEnvironment, node: Any) -> Path | None:
    """The file or folder of the repository that a link names, if the site has no page of it."""
    if node.get("reftype") != "myst" or node.get("refdomain") == "doc":
        return None
    name = unquote(node["reftarget"].split("#")[0])
    path = Path(os.path.normpath(ROOT / Path(env.docname).parent / name))
    if not name or not path.exists() or not path.is_relative_to(ROOT):
        return None
    return path.relative_to(ROOT)


def _linked(env: BuildEnvironment) -> dict[str, set[Path]]:
    if not hasattr(env, "linked_sources"):
        env.linked_sources = {}  # type: ignore[attr-defined]
    return env.linked_sources  # type: ignore[attr-defined, no-any-return]


def _purge(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    _linked(env).pop(docname, None)


def _merge(app: Sphinx, env: BuildEnvironment, docnames: Any, other: BuildEnvironment) -> None:
    _linked(env).update({name: paths for name, paths in _linked(other).items() if name in docnames})


def _page_of(path: Path) -> str:
    return f"{FOLDER}/{path}" + ("/index" if (ROOT / path).is_dir() else "")


def _write(app: Sphinx, error: Exception | None) -> None:
    """A page for each file that is linked to, and for each in a folder that is linked to."""
    if error is not None or app.builder.format != "html":
        return
    waiting = [*_OF_NAMES.union(*_linked(app.env).values())]
    written: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in written:
            continue
        written.add(path)
        if (ROOT / path).is_dir():
            waiting += _entries(path)
            body = _folder(path)
        else:
            body = _file(path)
        page = Path(app.outdir, f"{_page_of(path)}.html")
        page.parent.mkdir(parents=True, exist_ok=True)
        root = os.path.relpath(app.outdir, page.parent)
        page.write_text(PAGE.format(root=root, front=app.config.root_doc, title=escape(str(path)), body=body))


def _entries(path: Path) -> list[Path]:
    found = sorted((ROOT / path).iterdir(), key=lambda x: (x.is_dir(), x.name))
    return [x.relative_to(ROOT) for x in found if x.name not in _HIDDEN and x.suffix != ".pyc"]


def _folder(path: Path) -> str:
    rows = []
    for entry in _entries(path):
        name = entry.name + ("/" if (ROOT / entry).is_dir() else "")
        href = os.path.relpath(_page_of(entry), f"{FOLDER}/{path}") + ".html"
        rows.append(f'<li><a href="{href}"><code>{escape(name)}</code></a> {escape(_purpose(entry))}</li>')
    return f'<ul class="files">{"".join(rows)}</ul>'


def _purpose(path: Path) -> str:
    """The first line of a module's docstring."""
    file = ROOT / path / "__init__.py" if (ROOT / path).is_dir() else ROOT / path
    if file.suffix != ".py" or not file.is_file():
        return ""
    first = file.read_text().split("\n", 1)[0]
    return first.strip('"') if first.startswith('"""') else ""


def _file(path: Path) -> str:
    data = (ROOT / path).read_bytes()[:LONGEST].decode(errors="replace")
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    formatter = HtmlFormatter(cssclass="highlight", linenos="inline", lineanchors="L", anchorlinenos=True)
    return f'<div class="source">{highlight(data, lexer, formatter)}</div>'


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the links and the pages."""
    app.add_transform(ToSources)
    app.connect("env-purge-doc", _purge)
    app.connect("env-merge-info", _merge)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
