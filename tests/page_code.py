"""Runs the code of a page of docs/: its Python in one namespace, and its commands."""

import codeop
import contextlib
import doctest
import io
import re
import shlex

from texts import executed

from benchmarks.record import ROOT
from refopt import cli

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
    return re.search(rf"(?m)^{make[1]}:", MAKE) if make else line.startswith(
        ("pip install .", "python -m refopt.comm", "python -m refopt.gpu.ladder.", "python -m refopt_exercises ",
         "refopt check refopt.torch:AdamW"))


def not_pasted(text):
    """The line at which Python's prompt refuses a text that is pasted into it, with the error; "" if there is none.

    A blank line ends a statement with a block there, and one that follows without a blank line is a syntax error.
    """
    waiting = []
    for line in [*text.splitlines(), ""]:
        waiting.append(line)
        try:
            if codeop.compile_command("\n".join(waiting)) is not None:
                waiting = []
        except SyntaxError as error:
            return f"{line!r}: {error.msg}"
    return ""


def session(text):
    """Run a command of refopt, and compare what it prints."""
    line, _, expected = text.partition("\n")
    assert line.startswith("$ refopt ")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        cli.main(shlex.split(line)[2:])
    got = out.getvalue()
    assert doctest.OutputChecker().check_output(expected, got, doctest.ELLIPSIS), f"{line}\n{got}"
