"""Paths that the docs name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = "refopt|tests|benchmarks|docs|examples|notebooks|requirements"
NAMED = re.compile(rf"(?<![\w/.+-])((?:{FOLDERS})/[\w./-]+\.(?:py|md|json|txt|ipynb|npz|svg|toml))(?![\w*])")
LINKED = re.compile(r"\]\((?!\w+:)([^)#\s]+)(?:#[^)]*)?\)")
CREATED = re.compile(r"`(\S+\.py)`:\n\n```python")  # files that a guide has its reader write
PLACEHOLDERS = re.compile(r"NAME|ROUTINE|nNN")


def absent(page, text):
    """What a page names or links to that is not there."""
    created = {*CREATED.findall(text)}
    named = [ROOT / path for path in NAMED.findall(text) if path not in created and not PLACEHOLDERS.search(path)]
    linked = [page.parent / path for path in LINKED.findall(re.sub(r"(?s)```.*?```|`[^`\n]*`", "", text))]
    return sorted({str(path) for path in (*named, *linked) if not path.exists()})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_are_there(page):
    assert absent(page, page.read_text()) == []


@pytest.mark.parametrize("text", ["`tests/test_gone.py`", "[a page](gone.md)", "[a part](gone.md#part)"])
def test_what_is_gone_is_noticed(text):
    assert len(absent(ROOT / "docs" / "page.md", text)) == 1
