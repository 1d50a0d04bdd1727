"""docs/executor-finds.md: its programs are run, and what the executor says of each is written behind it; its rules."""

import contextlib
import io
import re
import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path

from maps.collect import ROOT, Item

from benchmarks.sections import table, with_section
from refopt import simt
from refopt.simt import rules, script

PAGE = ROOT / "docs" / "executor-finds.md"
PROGRAM = re.compile(r"```python\n(# refopt simt (.*)\n(?:.*\n)*?)```\n\n```text\n(?:.*\n)*?```")


def page(items: Iterable[Item] = ()) -> str:
    """The page, with the reports of today."""

    def with_report(found: re.Match[str]) -> str:
        return f"```python\n{found[1]}```\n\n```text\n{said(found[1], found[2])}\n```"

    text = PROGRAM.sub(with_report, PAGE.read_text())
    lines = [["rule", "by default", "what it requires"], ["---"] * 3]
    for listed, default in ((rules.ON, "on"), (rules.OFF, "off")):
        lines += [[f"`{name}`", default, what] for name, what in listed.items()]
    return with_section(text, "rules", table(lines))


def said(program: str, command: str) -> str:
    """What ends a program: the exception, without the way to it, or that nothing was reported."""
    seconds, arguments, errors = simt.limits.seconds, shlex.split(command), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path(arguments[-1]).write_text(program)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
                script.main(arguments)
        finally:
            simt.limits.seconds = seconds
    text = errors.getvalue().replace(f"{folder}/", "").strip()
    report = re.sub(r"\ATraceback.*\n(?: .*\n)*", "", text).replace("refopt.simt.", "")
    return re.sub(r"0x7[0-9a-f]{11}", "0x7...", report) or "nothing"  # which address it is depends on what ran before
