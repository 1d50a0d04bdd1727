"""The code on the pages of the site that tell how and why runs, in the order in which it stands there."""

import contextlib
import doctest
import io
import re
import shlex

import pytest
from texts import executed

from benchmarks.record import ROOT
from refopt import cli, gpu

OF_GPU, OF_PEERS = "graphs", "use-in-pytorch"
NAMES = [
    "getting-started", "check-your-optimizer", "read-a-kernel", "checkpoints", "several-gpus", "find-a-race", "merging",
    "gradient-coalescing", "sharding", "measuring",
]  # fmt: skip
BLOCK = re.compile(r"(?ms)^```(\w+)\n(.*?)^```$")
FILE = re.compile(r"# (\w+\.py)\n")
MAKE = (ROOT / "Makefile").read_text()


def blocks(name):
    """The language and the text of each block of a page."""
    return BLOCK.findall((ROOT / "docs" / f"{name}.md").read_text())


def run(name, folder):
    """Run the Python of a page in one namespace and its commands in a folder; returns how many blocks ran."""
    scope, count = {}, 0
    for language, text in blocks(name):
        file = FILE.match(text)
        if file:
            (folder / file[1]).write_text(text)
        elif language == "python":
            scope = executed(text, **scope)
        elif language == "console":
            session(text)
        elif language == "sh":
            assert all(map(known, text.splitlines())), text
            continue
        else:
            assert language == "text", f"{name}.md: a block of {language} is run by no test"
            continue
        count += 1
    return count


def known(line):
    """Whether a line for the shell is an installation, a target of make, or a launch, which other tests run."""
    make = re.match(r"make (\w+)", line)
    return re.search(rf"(?m)^{make[1]}:", MAKE) if make else line.startswith(("pip install .", "python -m refopt.comm"))


def session(text):
    """Run a command of refopt, and compare what it prints."""
    line, _, expected = text.partition("\n")
    assert line.startswith("$ refopt ")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        cli.main(shlex.split(line)[2:])
    got = out.getvalue()
    assert doctest.OutputChecker().check_output(expected, got, doctest.ELLIPSIS), f"{line}\n{got}"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with gpu.use("executor"):
        assert run(name, tmp_path)


def test_the_page_on_pytorch_runs(tmp_path):
    pytest.importorskip("torch")
    assert run(OF_PEERS, tmp_path) == 3


@pytest.mark.gpu
def test_the_page_on_graphs_runs(tmp_path):
    assert run(OF_GPU, tmp_path) == 1


# That these can fail.


def test_a_wrong_output_is_noticed():
    with pytest.raises(AssertionError, match="L1   step"):
        session("$ refopt check --list-laws\nno laws\n")


@pytest.mark.parametrize(("line", "is_known"), [("pip install .[bf16]", True), ("make records", True),
                                                ("make nothing", False), ("rm -r docs", False)])  # fmt: skip
def test_what_a_shell_may_be_told(line, is_known):
    assert bool(known(line)) == is_known
