"""The figures in README.md and on the pages are those of the records, and its examples and commands run."""

import json
import os
import re
import subprocess
import sys

import pytest
from foreign.suites import OWN_TESTS, STUMPY_TESTS
from page_code import BLOCK, session
from simt.test_random_kernels import EXPECTED, H200

from benchmarks import launches
from benchmarks.pages import PAGES
from benchmarks.record import ROOT
from benchmarks.sections import with_section
from refopt import gpu

from .conftest import FILE, counted, every_item

TEXT = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_tables_are_those_of_the_records(path):
    """If this fails, run python -m benchmarks.pages."""
    text = path.read_text()
    assert PAGES[path](text) == text


@pytest.mark.parametrize(("draw", "figure"), [
    (launches.draw, launches.FIGURE), (launches.draw_tiles, launches.TILES)], ids=["launches", "tiles"])
def test_the_pictures_of_launches_are_drawn(draw, figure, tmp_path):
    """If this fails, run python -m benchmarks.launches."""
    pytest.importorskip("matplotlib")
    draw(figure=tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").read_bytes() == figure.read_bytes()


@pytest.fixture
def counts(request, tmp_path):
    """How many tests there are of each kind: of this run, if it is of all, or as they are collected for this."""
    if items := every_item(request.config):
        return counted(items)
    options = "--collect-only", "-qq", "-p", "no:cacheprovider", "--assert=plain"
    command = [sys.executable, "-m", "pytest", *options, "tests"]
    environment = os.environ | {FILE: str(tmp_path / "counts")}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return json.loads((tmp_path / "counts").read_text())


def test_the_project_says_how_many_tests_there_are(counts):
    """Within a tenth."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    both = r"`make test` \| .*?about ([\d,]+) tests.*?`make test-long` \| about ([\d,]+)"
    (said,) = re.findall(both, text, re.DOTALL)
    for words, kind in zip(said, ("quick", "slow"), strict=True):
        assert int(words.replace(",", "")) == pytest.approx(counts[kind], rel=0.1), counts


def test_make_help_begins_with_a_few_targets():
    command = ["make", "--no-print-directory", "help"]  # make test is one make within another
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0] == "Targets of make:"
    assert max(map(len, lines)) <= 80
    first, others = ("\n".join(lines).split("\n\n")[k].splitlines()[1:] for k in (0, 1))
    listed = [line.split()[0] for line in first + others]
    assert len(first) <= 8 and "test" in [line.split()[0] for line in first] and len({*listed}) == len(listed)
    phony = re.findall(r"(?m)^\.PHONY: (.*)", (ROOT / "Makefile").read_text())
    assert {*listed} == {*" ".join(phony).split()}


def test_a_section_is_replaced_where_there_is_one():
    page = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\nold\n<!-- end -->\n"
    assert with_section(page, "x", "| 1 |") == page.replace("old", "| 1 |", 1)
    with pytest.raises(ValueError, match="one section z, got 0"):
        with_section(page, "z", "")


def test_the_examples_run(machine):
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    with gpu.use(machine.name):
        exec(example, {})


@pytest.mark.slow  # seconds of a command
def test_the_commands_print_what_is_shown():
    sessions = [text for language, text in BLOCK.findall(TEXT) if language == "console"]
    assert len(sessions) == 1
    with gpu.use("executor"):
        session(sessions[0])


def test_figures_in_sentences_are_the_records():
    """Those of the first screen, which the table has too, of random kernels, and of other projects' tests."""
    ours, theirs = re.search(r"ResNet-50 takes (\S+) ms, and (\S+) ms", " ".join(TEXT.split())).groups()
    assert f"| **refopt, two launches** | **{ours}** |" in TEXT and f"| the same, as a CUDA graph | {theirs} |" in TEXT
    others = len((ROOT / "tests" / "foreign" / "own_tests.txt").read_text().splitlines())
    for page, said in [("limits", f"{len(EXPECTED)} of {len(H200.left | H200.refused)} random kernels"),
                       ("executor", f"its {STUMPY_TESTS} GPU tests"),
                       ("executor", f"{OWN_TESTS} of {OWN_TESTS + others} of its own tests")]:
        assert said in (ROOT / "docs" / f"{page}.md").read_text()
