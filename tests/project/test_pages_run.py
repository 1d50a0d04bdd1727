"""The code on the pages of the site that tell how and why runs, in the order in which it stands there."""

import re

import pytest
from page_code import FILE, blocks, known, run, session
from texts import executed

from refopt import gpu

NAMES = ["index", "read-a-kernel", "checkpoints", "several-gpus", "find-a-race", "merging", "sharding",
         "sharding-by-element", "measuring", "muon"]
CHECKS = "getting-started", "check-your-optimizer", "vectors"  # by commands, which take seconds


@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in CHECKS)])
def test_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with gpu.use("executor"):
        assert run(name, tmp_path)


@pytest.mark.slow  # by commands, too
def test_the_page_on_the_oracle_runs(tmp_path, monkeypatch):
    """All of it that needs no step of the reader's and no PyTorch; `tests/oracle/test_pages.py` has more."""
    monkeypatch.chdir(tmp_path)
    scope, count = {}, 0
    for language, text in blocks("oracle"):
        if file := FILE.match(text):
            (tmp_path / file[1]).write_text(text)
        elif language == "console":
            session(text)
        elif language == "python" and not re.search(r"my_|torch|=m\b|def test", text):
            scope, count = executed(text, **scope), count + 1
    assert count == 4


@pytest.mark.gpu
def test_the_page_on_graphs_runs(tmp_path):
    assert run("graphs", tmp_path) == 1


# That these can fail.


def test_a_wrong_output_is_noticed():
    with pytest.raises(AssertionError, match="L1   step"):
        session("$ refopt check --list-laws\nno laws\n")


@pytest.mark.parametrize(("line", "is_known"), [("pip install .[bf16]", True), ("make records", True),
                                                ("make nothing", False), ("rm -r docs", False)])
def test_what_a_shell_may_be_told(line, is_known):
    assert bool(known(line)) == is_known
