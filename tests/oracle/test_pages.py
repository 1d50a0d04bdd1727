"""The code of docs/oracle.md runs, and is as short as a check has to be."""

import re
from pathlib import Path

import numpy as np
import pytest

from refopt import oracle

DOCS = Path(oracle.__file__).parents[2] / "docs"
BLOCKS = re.findall(r"```python\n(.*?)```", (DOCS / "oracle.md").read_text(), re.DOTALL)


def block(text):
    (found,) = (x for x in BLOCKS if text in x)
    return found


def lines_of(text):
    return [line for line in text.splitlines() if line.strip()]


def test_a_kernel_of_ones_own():
    text = block("def test_adamw")
    assert len(lines_of(text)) <= 15
    known, fewer = {}, text.replace("dtypes=", "laws=['L1', 'L10'], dtypes=")
    exec(fewer, known)
    known["test_adamw"]()
    exec(fewer.replace(" + epsilon)", ")").replace("dtypes=", "examples=0, dtypes="), known)
    with pytest.raises(AssertionError, match="epsilon ignored"):
        known["test_adamw"]()


def test_expect():
    random = np.random.default_rng(0)
    params, grads, m, v = ([abs(random.normal(size=5)).astype("f4")] for _ in range(4))
    known = dict(oracle=oracle, params=params, grads=grads, m=m, v=v, got=params[0])
    known |= {name: [np.full(1, beta, np.float32)] for name, beta in (("b1", 0.9), ("b2", 0.999))}
    exec(block("oracle.expect"), known)
    assert (known["expected"].ratio(params[0]) > 1).any()
