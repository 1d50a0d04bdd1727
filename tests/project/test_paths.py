"""Paths that the docs name are there; `test_site` looks at their links."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = "refopt|tests|benchmarks|docs|examples|notebooks|requirements"
NAMED = re.compile(rf"(?<![\w/.+-])((?:{FOLDERS})/[\w./-]+\.(?:py|md|json|txt|ipynb|npz|svg|toml))(?![\w*])")
CREATED = re.compile(r"`(\S+\.py)`:\n\n```python")  # files that a guide has its reader write
PLACEHOLDERS = re.compile(r"NAME|ROUTINE|SEED|nNN")


def absent(text):
    """What a page names that is not there."""
    created = {*CREATED.findall(text)}
    named = {path for path in NAMED.findall(text) if path not in created and not PLACEHOLDERS.search(path)}
    return sorted(path for path in named if not (ROOT / path).exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_are_there(page):
    assert absent(page.read_text()) == []


def test_what_is_gone_is_noticed():
    assert absent("`tests/test_gone.py`, and `tests/skipped.py`") == ["tests/test_gone.py"]
