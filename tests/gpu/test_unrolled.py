"""Functions that are assembled from text: docstrings show what is made."""

import linecache
import re
from itertools import takewhile

import pytest

from refopt.catalog import LAMB, LARS_MOMENTUM
from refopt.checks.dtypes import arithmetic
from refopt.gpu import matmul, products, rules, unroll
from refopt.gpu.norms import chunks, elements
from refopt.gpu.tensor_core import ldmatrix4

FP32 = ("float32",) * 3 + (None,)


def norm_rule(routine):
    choices = {name: values[0] for name, values in routine.choices.items() if name != "rounding"}
    return rules.RULES[routine.name](arithmetic("float32"), frozenset(), **choices)


def step(v, g, k):
    return v + g * k


LARS = LARS_MOMENTUM, FP32, norm_rule(LARS_MOMENTUM)
# Who shows it, and what makes it.
MADE = [
    (unroll.gather, lambda: unroll.gather("hypers_of", "hyper[{k}, tensor]", "hyper, tensor", 3)),
    (unroll.map8, lambda: unroll.map8(step, 2)),
    (elements.norm_row, lambda: elements.norm_row(*LARS, 2)(False)),
    (elements.update_row, lambda: elements.update_row(*LARS)(False)),
    (chunks._leave, lambda: chunks._leave(LAMB, norm_rule(LAMB), arithmetic("float32"))),
    (products.storer, lambda: products.storer("bfloat16", True, True)),
    (matmul.storer, lambda: matmul.storer("bfloat16", "rounded")),
    (matmul.multiplier, lambda: matmul.multiplier("bfloat16", ldmatrix4, ldmatrix4)),
]


def pattern(docstring, first):
    """What matches the code that a docstring shows, where ``...`` stands for what it leaves out."""
    found = re.search(rf"(?m)^( +){first}", docstring)
    lines = takewhile(lambda line: not line or line.startswith(found[1]), docstring[found.start() :].split("\n"))
    shown = "\n".join(line.removeprefix(found[1]) for line in lines).strip()
    parts = [re.escape(part) for part in re.split(r"\n *\.\.\.(?=\n|$)", shown)]
    return r"(?:\n.*)*?".join(part.replace(re.escape("..."), ".*") for part in parts) + r"\n?"


@pytest.mark.parametrize(("shows", "make"), MADE, ids=lambda x: getattr(x, "__name__", ""))
def test_a_docstring_shows_what_is_made(shows, make):
    text = "".join(linecache.getlines(make().__code__.co_filename))
    assert re.fullmatch(pattern(shows.__doc__, "def "), text), text


@pytest.mark.parametrize("text", [
    "def f(x):\n    return x[1]\n", "def f(x):\n    return x[0]\n    x = 1\n", "def f(y):\n    return x[0]\n"])
def test_another_text_is_noticed(text):
    shown = "Makes::\n\n    def f(x):\n        return x[0]\n\nAnd more."
    assert re.fullmatch(pattern(shown, "def "), "def f(x):\n    return x[0]\n")
    assert not re.fullmatch(pattern(shown, "def "), text)
