"""Digests of results that stay what they are, in kept.txt, which ``REFOPT_KEPT=write`` with a test writes again."""

import hashlib
import os
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("kept.txt")


def digest(x):
    return hashlib.sha256((x if isinstance(x, str) else repr(x)).encode()).hexdigest()[:16]


def digits(results, most=6):
    """Numbers by name, to so many digits, since the last ones depend on the machine."""
    return {name: [f"{x:.{most}g}" for x in np.ravel(np.asarray(of, float))] for name, of in (results or {}).items()}


def assert_kept(got):
    """Texts by name are those in the file."""
    known = dict(line.split(": ", 1) for line in FILE.read_text().splitlines())
    if os.environ.get("REFOPT_KEPT") == "write":
        FILE.write_text("".join(f"{of}: {text}\n" for of, text in (known | got).items()))
        return
    changed = [f"{of}: was {known.get(of)}, is {text}" for of, text in got.items() if known.get(of) != text]
    meant = "if that is meant, run this test with the environment variable REFOPT_KEPT=write, and commit kept.txt"
    assert not changed, "\n".join([*changed, meant])
