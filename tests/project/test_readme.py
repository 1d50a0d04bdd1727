"""The figures in README.md and on the pages are those of the records, and its examples run."""

import re

import pytest

from benchmarks import launches
from benchmarks.pages import PAGES
from benchmarks.record import ROOT
from benchmarks.sections import with_section
from refopt import gpu

README = ROOT / "README.md"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_tables_are_those_of_the_records(path):
    """If this fails, run python -m benchmarks.pages."""
    text = path.read_text()
    assert PAGES[path](text) == text


def test_the_picture_of_launches_is_the_records(tmp_path):
    """If this fails, run python -m benchmarks.launches."""
    pytest.importorskip("matplotlib")
    launches.draw(figure=tmp_path / "launches.svg")
    assert (tmp_path / "launches.svg").read_bytes() == launches.FIGURE.read_bytes()


def test_milliseconds_are_in_the_readme():
    assert re.search(r"\| \*\*\d\.\d{3}\*\* \|", README.read_text())


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
