"""The pages on the executor say what it does."""

import doctest
import re
from pathlib import Path

import pytest

from refopt import simt


@pytest.mark.parametrize("name", ["executor", "profile"])
def test_a_page_with_a_session(name):
    result = doctest.testfile(str(Path(__file__).parents[2] / "docs" / f"{name}.md"), module_relative=False)
    assert result.failed == 0 < result.attempted


def test_every_report_has_a_program():
    """On the page of what the executor finds; tests/project/test_maps.py shows that programs end with their reports."""
    page = (Path(__file__).parents[2] / "docs" / "executor-finds.md").read_text()
    public = {name: vars(simt)[name] for name in simt.__all__}
    errors = {name for name, it in public.items() if isinstance(it, type) and issubclass(it, simt.SimtError)}
    assert set(re.findall(r"```text\n(\w+): ", page)) == errors - {"SimtError"}
    assert page.count("```python") == page.count("```text") == len(re.findall(r"# refopt simt .*\.py\n", page))
