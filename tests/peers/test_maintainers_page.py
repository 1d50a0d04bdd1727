"""The jobs of docs/maintainers.md run, and its commands print what stands there.

By default some jobs' commands are held to few laws; the slow tests run each as it stands. Without Triton, or without a
compiler and ninja, what takes them is skipped.
"""

import doctest
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import ci_examples
import pytest
from page_code import FILE, blocks

from benchmarks.record import ROOT
from refopt import cli

pytest.importorskip("torch")
pytest.importorskip("optax")

JOBS = [line for name in ("optimizers.yml", "nightly.yml") for line in ci_examples.commands(name)]
CONSOLE = [text for language, text in blocks("maintainers") if language == "console"]
SHORT = {line.partition(" --seed")[0].removeprefix("refopt check "): line for line in JOBS}
slow = pytest.mark.slow
# A job of each kind.
FEW = "--as none --with fused=true", "torch_adamw.py:AdamW --as adamw --dtype fp32 fp64", "optax_clipped"
SHOWN = ("holds.txt",)


def need(command):
    """What a command takes beside PyTorch and optax."""
    if "triton" in command and importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    if "extension" in command and not (shutil.which("c++") and shutil.which("ninja")):
        pytest.skip("a compiler and ninja are not installed")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with the examples in its folder ci."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(ci_examples.FOLDER, folder / "ci", ignore=shutil.ignore_patterns("__pycache__"))
    line, file = re.search(r"`(L1 # .*)` in a file\s+`(.*)`:", (ROOT / "docs" / "maintainers.md").read_text()).groups()
    (folder / file).write_text(f"{line}\n")
    for _, text in blocks("maintainers"):
        if file := FILE.match(text):
            (folder / file[1]).write_text(text)
    return folder


def run(project, *words):
    """The process that a command has been, in that project, with refopt from the checkout."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    extensions = {"TORCH_EXTENSIONS_DIR": str(project / "built")}
    environment = os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"} | extensions
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=900)


def held(project, command):
    """Run a job's command: it ends with 0, and just what its file says has failed."""
    need(command)
    done = run(project, *command.split())
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((project / ci_examples.option(command, "--json")).read_text())
    asked = [law for law in ci_examples.expected(command) if law in report["laws"]]
    assert report["ok"] and {*report["failed_laws"]} - {"L28"} == {*asked}  # which PyTorch's own loading breaks


def few_laws(command):
    """A job's command, of the step law, or going on, and of what it expects to fail, but for what takes long."""
    if "--law" in command:
        return command
    usual = "L16" if "--as none" in command else "L1"
    laws = dict.fromkeys([usual, *ci_examples.expected(command)])
    of_formula = "" if "--as none" in command else " --examples 0"
    return f"{command} --law {' '.join(law for law in laws if law != 'L3')}{of_formula}"


def texts(every, few, ids):
    """Texts as parameters: those are slow that have none of a few words."""
    params = [pytest.param(text, marks=[] if any(word in text for word in few) else slow) for text in every]
    return pytest.mark.parametrize("command", params, ids=ids)


@texts(SHORT.values(), FEW, list(SHORT))
def test_a_job_of_few_laws(project, command):
    held(project, few_laws(command))


@slow
@texts(SHORT.values(), (), list(SHORT))
def test_a_job(project, command):
    held(project, command)


@texts(CONSOLE, SHOWN, [text.partition("\n")[0] for text in CONSOLE])
def test_a_command_prints_what_is_said(project, command):
    line, _, said = command.partition("\n")
    need(line)
    done = run(project, *line.removeprefix("$ ").split())
    assert done.returncode == 1, done.stderr
    assert doctest.OutputChecker().check_output(said, done.stdout, doctest.ELLIPSIS), done.stdout


def test_a_file_with_a_line_that_is_no_law(project, monkeypatch, capsys):
    (project / "typo.txt").write_text("L99 # no law\n")
    monkeypatch.chdir(project)
    line = "check ci/torch_adamw.py:AdamW --as adamw --expected-failures typo.txt"
    assert cli.main(line.split()) == 2 and "typo.txt, line 1" in capsys.readouterr().err


@slow
def test_the_tests_of_the_page(project):
    chosen = "L1-float32 or L15 or formula"
    done = run(project, "pytest", "-q", "-p", "no:cacheprovider", "ci/test_laws.py", "-k", chosen)
    assert done.returncode == 0 and "1 passed" in done.stdout and "2 xfailed" in done.stdout, done.stdout
