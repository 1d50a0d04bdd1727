"""The code on the pages of the site that tell how and why runs, in the order in which it stands there."""

import re

import pytest
from page_code import BLOCK, FILE, blocks, known, not_pasted, run, session
from texts import executed

from benchmarks.record import ROOT
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
    assert count == 3


@pytest.mark.gpu
def test_the_page_on_graphs_runs(tmp_path):
    assert run("graphs", tmp_path) == 1


PAGES = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
         if path.stem != "interface"]  # which lists signatures


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_code_can_be_pasted_at_a_prompt(path):
    """All but modules, which begin with their docstring."""
    for language, text in BLOCK.findall(path.read_text()):
        assert language != "python" or text.startswith('"""') or not not_pasted(text), text


# That these can fail.


@pytest.mark.parametrize(("text", "said"), [
    ("for x in ():\n    x\nx = 1\n", "'x = 1': invalid syntax"),
    ("def f():\n    x = 1\n\n    return x\n", "    return x"),
    ("try:\n    x = 1\nexcept OSError:\n    raise\nx = 2\n", "'x = 2'"), ("for x in ():\n    x\n\nx = [\n\n1]\n", ""),
    ("def f():\n    return 1\n", "")])
def test_what_a_prompt_refuses(text, said):
    assert said in not_pasted(text) and bool(said) == bool(not_pasted(text))


def test_a_wrong_output_is_noticed():
    with pytest.raises(AssertionError, match="L1   step"):
        session("$ refopt check --list-laws\nno laws\n")


@pytest.mark.parametrize(("line", "is_known"), [("pip install .[bf16]", True), ("make records", True),
                                                ("make nothing", False), ("rm -r docs", False)])
def test_what_a_shell_may_be_told(line, is_known):
    assert bool(known(line)) == is_known
