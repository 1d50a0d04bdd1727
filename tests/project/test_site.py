"""The site has every page and every notebook, and the check of its links notices what is wrong.

`make site` builds it, without a warning, and checks the links of all pages.
"""

import importlib.util
import json
import os
import re

import pytest

from benchmarks.record import ROOT

SITE = ROOT / "docs" / "_site"
TREE = re.compile(r"(?ms)^```\{(toctree|notebooks)\}\n(.*?)^```$")
MARKDOWN = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/**/*.ipynb")])
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(?:#[^)]*)?\)")
CODE = re.compile(r"(?s)```.*?```|`[^`\n]*`")
OUTSIDE = {"CONTRIBUTING.md", "CHANGELOG.md"}
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
FENCED = re.compile(r"(?ms)^( *)```(\w+)\n(.*?)^ *```$")


def entries(text, folder="docs"):
    """What the tables of contents of a page in a folder name: pages, and folders of notebooks."""
    pages, folders = [], []
    for kind, body in TREE.findall(text):
        lines = [x for x in body.splitlines() if x and not x.startswith(":")]
        if kind == "notebooks":
            folders += lines
        else:
            names = [os.path.normpath(f"{folder}/{x}" if x[0] != "/" else x[1:]) for x in lines]
            pages += [page for name in names for page in (globbed(name) if "*" in name else [name])]
    return pages, folders


def globbed(name):
    return sorted(str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.glob(f"{name}.md"))


def below(page="docs/index"):
    """Every page and folder that a page leads to, by its own tables of contents and those of the pages in them."""
    path = ROOT / f"{page}.md"
    pages, folders = entries(path.read_text(), os.path.dirname(page)) if path.is_file() else ([], [])
    for more in [below(each) for each in pages]:
        pages, folders = pages + more[0], folders + more[1]
    return pages, folders


def orphans(files, pages, folders):
    """The files that no table of contents names."""
    return {x for x in files if os.path.splitext(x)[0] not in pages and os.path.dirname(x) not in folders}


def test_no_page_and_no_notebook_is_left_out():
    every = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("notebooks/**/*.ipynb")]
    files = {str(x.relative_to(ROOT)) for x in every if ".ipynb_checkpoints" not in x.parts}
    pages, folders = below()
    assert orphans(files | OUTSIDE, pages, folders) == {"docs/index.md"}
    assert all((ROOT / f"{page}.md").is_file() for page in pages) and len({*pages}) == len(pages)


def wide(text):
    """Lines of code that a page of 1,280 pixels cuts off. Output and commands may be as long as they are."""
    return [line for indent, language, body in FENCED.findall(text) if language in ("python", "diff", "toml")
            for line in body.splitlines() if len(line) - len(indent) > 96]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_is_at_most_96_columns_wide(path):
    assert wide(path.read_text()) == []


def test_a_wide_line_is_noticed():
    assert wide(f"```python\n{'x' * 97}\n{'x' * 96}\n```\n```text\n{'x' * 99}\n```\n") == ["x" * 97]


def dead(path, text):
    """The relative links of a Markdown file or a notebook that lead to no file or folder."""
    return [link for link in LINK.findall(CODE.sub("", text)) if not (path.parent / link).exists()]


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(path):
    text = path.read_text()
    if path.suffix == ".ipynb":
        text = "\n".join("".join(x["source"]) for x in json.loads(text)["cells"] if x["cell_type"] == "markdown")
    assert not dead(path, text)


def test_a_dead_link_and_an_orphan_are_noticed():
    text = "[a](numerics.md#n1) [b](nowhere.md) [c](../refopt/cpu) [d](../refopt/gone) [e](https://x.y/z.md) `f[0](x)`"
    assert dead(ROOT / "docs" / "index.md", text) == ["nowhere.md", "../refopt/gone"]
    text = "```{toctree}\n:maxdepth: 1\n\na\nb\n/CHANGELOG\n```\n\n```{notebooks}\nnotebooks\n```\n"
    files = {"docs/a.md", "docs/b.md", "docs/c.md", "CHANGELOG.md", "notebooks/1.ipynb", "notebooks/exercises/1.ipynb"}
    assert orphans(files, *entries(text)) == {"docs/c.md", "notebooks/exercises/1.ipynb"}


# The check of the built pages.


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("site_check", SITE / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOOD = '<h1 id="top">x</h1><a href="#top"></a><a href="b/c.html#there"></a><a href="https://a.b"></a><img src="d.png">'


@pytest.mark.parametrize(("text", "line"), [
    (GOOD, ""), (GOOD + '<a href="#bottom"></a>', "a.html: #bottom: has no such anchor"),
    (GOOD + '<a href="b/c.html#where"></a>', "a.html: b/c.html#where: has no such anchor"),
    (GOOD + '<a href="../a.html"></a>', "a.html: ../a.html: leads nowhere"),
    (GOOD + '<a href="b"></a>', "a.html: b: leads nowhere"),
    (GOOD + '<img src="e.png">', "a.html: e.png: leads nowhere"),
    (GOOD + '<script src="https://cdn.x/y.js"></script>', "a.html: https://cdn.x/y.js: is fetched from elsewhere"),
    (GOOD + '<link rel="stylesheet" href="//x/y.css">', "a.html: //x/y.css: is fetched from elsewhere")])
def test_what_the_check_says(check, tmp_path, text, line):
    (tmp_path / "b").mkdir()
    (tmp_path / "d.png").touch()
    (tmp_path / "a.html").write_text(text)
    (tmp_path / "b" / "c.html").write_text('<p id="there"><a href="../a.html"></a>')
    assert list(check.problems(tmp_path)) == ([line] if line else [])


def test_a_font_from_elsewhere_and_an_empty_folder(check, tmp_path, capsys):
    assert check.main(str(tmp_path)) == 1 and "no pages" in capsys.readouterr().out
    (tmp_path / "a.html").touch()
    assert check.main(str(tmp_path)) == 0
    (tmp_path / "a.css").write_text('@font-face { src: url("https://fonts.x/y.woff") }')
    assert check.main(str(tmp_path)) == 1 and "a.css: fetches from elsewhere" in capsys.readouterr().out
