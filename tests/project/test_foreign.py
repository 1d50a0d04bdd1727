"""What runs other people's kernels: files come from git at a commit, kernels keep their text and their lines."""

import json
import subprocess

import numpy as np
import pytest
from foreign import repositories, source

from refopt import simt

SCRIPT = '''\
import expensive
from numba import cuda, float32

N = 1 << 20
data = expensive.load(N)


@cuda.jit
def scale(x, factor):
    s = cuda.shared.array(4, float32)
    i = cuda.grid(1)
    s[i] = x[i] * factor  # a comment
    x[i] = s[i] + N


def scale_more():
    raise SystemExit
'''
ONE = "@cuda.jit\ndef one(x):\n    x[0] = 1"
CELLS = ["!pip install nothing\nimport cupy", ONE, "def one(x):\n    x[0] = 2", "a b"]


@pytest.fixture
def mirrored(tmp_path, monkeypatch):
    """A mirror with one repository, whose newest commit is not the one that is asked for."""
    work = tmp_path / "someone+kernels" / "repo"
    work.mkdir(parents=True)

    def git(*args):
        author = ("-c", "user.name=x", "-c", "user.email=x@x")
        done = subprocess.run(["git", *author, *args], cwd=work, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    (work / "a.py").write_text(SCRIPT)
    cells = [{"cell_type": "code", "source": text.splitlines(keepends=True)} for text in CELLS]
    (work / "b.ipynb").write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "one(x)"}, *cells]}))
    git("add", "-A")
    git("commit", "-qm", "first")
    monkeypatch.setitem(repositories.COMMITS, "someone/kernels", git("rev-parse", "HEAD"))
    (work / "a.py").write_text("raise SystemExit\n")
    git("commit", "-qam", "second")
    monkeypatch.setenv("REFOPT_MIRRORS", str(tmp_path))
    monkeypatch.setattr(repositories, "BUILD", tmp_path / "build")
    monkeypatch.setattr(source, "BUILD", tmp_path / "build")
    return "someone/kernels"


def test_files_are_those_of_the_commit(mirrored):
    assert (repositories.files(mirrored, ["a.py"]) / "a.py").read_text() == SCRIPT
    assert not (repositories.BUILD / "someone+kernels" / "b.ipynb").exists()


def test_a_kernel_of_a_script(mirrored):
    scale = source.kernels(mirrored, "a.py", ["scale"], N=10).scale
    x = np.arange(4, dtype=np.float32)
    scale[1, 4](x, 2)
    assert x.tolist() == [10, 12, 14, 16] and isinstance(scale, simt.cuda.jit(lambda: None).__class__)
    assert scale.py_func.__code__.co_firstlineno == 8  # as in the script
    text = (source.BUILD / "kernels" / "a-scale-0.py").read_text()
    assert "# a comment" in text and "expensive" not in text and "N =" not in text


def test_kernels_of_a_notebook(mirrored):
    x = np.zeros(1)
    source.kernels(mirrored, "b.ipynb", ["one"], cuda=simt.cuda).one[1, 1](x)
    assert x[0] == 1
    source.kernels(mirrored, "b.ipynb", ["one"], 1).one(x)
    assert x[0] == 2
    with pytest.raises(LookupError, match=r"^someone/kernels: b.ipynb does not define two"):
        source.kernels(mirrored, "b.ipynb", ["two"])
