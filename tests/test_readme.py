"""The figures in README.md are those of the reports, and its example runs."""

import re

import pytest

from benchmarks.pages import with_section
from benchmarks.readme import README, with_tables
from refopt import gpu


def test_tables_are_those_of_the_reports():
    """If this fails, run python -m benchmarks.readme."""
    text = README.read_text()
    assert re.search(r"\| \*\*\d\.\d{3}\*\* \|", text)
    assert with_tables(text) == text


def test_a_section_is_replaced_where_there_is_one():
    page = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\nold\n<!-- end -->\n"
    assert with_section(page, "x", "| 1 |") == page.replace("old", "| 1 |", 1)
    with pytest.raises(ValueError, match="one section z, got 0"):
        with_section(page, "z", "")


def test_the_examples_run(machine, capsys):
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(examples) == 3
    with gpu.use(machine.name):
        for example in examples:
            exec(example, {})
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 120
