"""docs/maintainers.md shows what is in examples/ci, and its jobs are what GitHub takes. tests/peers runs them."""

import json
import re
import textwrap

import ci_examples
import pytest
from ci_examples import FOLDER
from page_code import FILE, blocks

import refopt
from benchmarks.record import ROOT
from refopt.oracle import LAWS
from refopt.oracle.exceptions import reasons

yaml = pytest.importorskip("yaml")

SOURCES = [path.read_text() for path in sorted(FOLDER.iterdir()) if path.is_file()]
WORKFLOWS = "optimizers.yml", "nightly.yml"
PINNED = [(ROOT / "requirements" / name).read_text().split() for name in ("peers.txt", "torch.txt")]
NOT_THERE = {"ninja==1.13.2", "triton==3.6.0"}  # of requirements


def jobs():
    """Each job of the workflows, as YAML has it."""
    files = {name: yaml.safe_load((FOLDER / name).read_text()) for name in WORKFLOWS}
    return [pytest.param(body, id=f"{name}-{job}") for name in files for job, body in files[name]["jobs"].items()]


def is_quoted(text, sources=SOURCES):
    """Whether a text is part of a file, however far it is indented there."""
    return any(textwrap.indent(text, " " * deep) in source for source in sources for deep in range(0, 16, 2))


def test_every_block_is_part_of_a_file():
    own = [text for language, text in blocks("maintainers") if language != "console" and not FILE.match(text)]
    assert len(own) > 15 and [text for text in own if not is_quoted(text)] == []


@pytest.mark.parametrize("body", jobs())
def test_a_job_is_five_steps(body):
    checkout, python, install, check, upload = body["steps"]
    assert checkout["uses"].startswith("actions/checkout@") and python["uses"].startswith("actions/setup-python@")
    assert install["run"].startswith("pip install ") and upload["uses"].startswith("actions/upload-artifact@")
    assert upload["if"] == "always()", "a report of a failure is what one wants to see"
    lines = check["run"].splitlines()
    assert all(line.startswith("refopt check ") for line in lines)
    written = [ci_examples.option(line, "--json") for line in lines]
    assert upload["with"]["path"] in ("*.json", *written) and len({*written}) == len(lines)


@pytest.mark.parametrize("body", jobs())
def test_versions_are_pinned(body):
    ours, *others = re.findall(r'[^\s"]+', body["steps"][2]["run"].removeprefix("pip install "))
    assert re.sub(r"\[bf16\]$", "", ours) == f"ci/refopt-{refopt.__version__}-py3-none-any.whl"
    assert {*others} - NOT_THERE <= {*PINNED[0], *PINNED[1]}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_command_is_overlooked(name):
    """What YAML has, and what the tests that run commands find."""
    found = []
    for body in yaml.safe_load((FOLDER / name).read_text())["jobs"].values():
        hows = body.get("strategy", {}).get("matrix", {}).get("how", [""])
        assert hows == [""] or tuple(hows) == ci_examples.MATRIX[1]
        for line in body["steps"][3]["run"].splitlines():
            found += [line.replace(ci_examples.MATRIX[0], how) for how in hows]
    assert [line.replace(ci_examples.SEED, "7") for line in found] == ci_examples.commands(name)


def test_files_name_laws():
    files = sorted(FOLDER.glob("*.txt"))
    named = [reasons("file", path, LAWS) for path in files]
    used = json.dumps([ci_examples.commands(name) for name in WORKFLOWS])
    assert sum(map(len, named)) > 7 and all(f"ci/{path.name}" in used for path in files)
