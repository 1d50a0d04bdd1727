"""Every set-up line that a page names works in an empty environment: what it promises can be imported there."""

import re
import subprocess
import sys

import pytest
import wheels

from benchmarks.record import ROOT

from .test_notebooks import ABOUT, EXERCISES, NOTEBOOKS, imported

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "notebooks" / "exercises" / "README.md"]
LINE = re.compile(r"pip install (?:-e )?[\"']?(?:\.|refopt)(?:\[([\w,]+)\])?[\"']?(?=[\s`]|$)", re.MULTILINE)
COMPILES = "from refopt.gpu import target; assert not target.no_compiler(), target.no_compiler()"
EXTRAS = {"": "import refopt.oracle", "bf16": "import ml_dtypes", "cuda12": COMPILES, "cuda13": COMPILES,
          "oracle": "import hypothesis, ml_dtypes", "docs": "import sphinx, myst_nb"}


def lines(text):
    """The extras of each line that installs refopt."""
    return LINE.findall(text)


def named():
    return sorted({extras for page in PAGES for extras in lines(page.read_text())})


def promised(extras):
    """What has to run after a line: of notebooks, the imports of all of them."""
    theirs = {library for path in (*NOTEBOOKS, *EXERCISES) for library in imported(path) - ABOUT.get(path.stem, set())}
    known = EXTRAS | {"notebooks": f"import {', '.join(sorted(theirs))}, jupyter"}
    return "\n".join(known[extra] for extra in extras.split(","))


def test_lines_are_found():
    text = 'pip install .\n`pip install -e ".[notebooks,cuda13]"`\npip install "refopt[cuda13]" \npip install other .'
    assert lines(text) == ["", "notebooks,cuda13", "cuda13"]


def test_every_line_is_tried():
    assert {"", "notebooks"} <= set(named()) and all(map(promised, named()))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return wheels.build(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
@pytest.mark.parametrize("extras", named())
def test_a_line_works_in_an_empty_environment(extras, wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "own"], check=True)
    own = tmp_path / "own" / "bin" / "python"
    address = f"refopt{extras and f'[{extras}]'} @ {wheel.as_uri()}"
    subprocess.run([own, "-m", "pip", "install", "-q", "--disable-pip-version-check", address], check=True)
    done = subprocess.run([own, "-c", promised(extras)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
