"""A cause explains failures of its kind alone; errors, other shapes and other ends of a step are told beside it."""

import json
import os

import numpy as np
import pytest

from refopt import oracle

LAWS = [f"L{k}" for k in (1, 2, 4, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 19, 20, 21, 22, 23, 24)]
SCALARS = {"dtypes": ["float32"], "laws": ["L1", "L4", "L15"], "examples": 0}


def stopping(params):
    raise ValueError("no scalars here")


ENDS = {
    "ValueError: no scalars here": stopping,
    "got one of float64 of shape ()": lambda params: [np.float64(p) if p.shape == () else p for p in params],
    "got one of float32 of shape (1,)": lambda params: [p.reshape(-1) if p.shape == () else p for p in params],
    "the end of its process, with exit code 3": lambda params: os._exit(3)}


def descending(at_scalars, decay):
    """SGD with so much of its decay, and something else for a parameter without axes."""

    def step(params, grads, *, lr, l2_decay):
        for p, g in zip(params, grads, strict=True):
            p -= lr * (g + decay * l2_decay * p)
        return at_scalars(params) if any(p.shape == () for p in params) else None

    return step


@pytest.mark.parametrize("text", ENDS)
def test_what_is_no_wrong_number_has_a_line_beside_a_cause(text):
    process = None if "process" in text else False
    report = oracle.check("sgd", descending(ENDS[text], 0.5), **SCALARS, process=process)
    lines = str(report).splitlines()
    assert "cause: half of l2_decay" in lines and "smallest example: 1 tensor of 1 element, step 1" in lines[3]
    (line,) = (line for line in lines if text in line)
    assert line.startswith("L4 layouts, float32, in 'shape ()'")
    assert all(kind == "" for cause in report.causes for _, kind in cause.failures)
    (line,) = (line for line in report.details().partition("\n\n")[2].splitlines() if text in line and line[0] == "L")
    assert line.startswith("L4 layouts, float32: ")


def test_json_has_the_kind_of_a_failure():
    fields = json.loads(oracle.check("sgd", descending(stopping, 0.5), **SCALARS, process=False).to_json())
    (item,) = (x for x in fields["items"] if x["label"] == "shape ()")
    assert item["kind"].endswith("step: expected no error, got ValueError: no scalars here")
    assert "params[0] of shape ()" in item["example"]
    assert {x["kind"] for x in fields["items"] if x["law"] == "L1"} == {""}
    assert ["L1", ""] in fields["causes"][0]["failures"] and fields["causes"][0]["laws"][0] == "L1"


def test_failures_that_differ_in_their_numbers_alone_have_one_line():
    """Which has their text, however many laws it names."""

    def refusing(params, grads, *, lr):
        raise ValueError(f"{sum(p.size for p in params)} elements, I refuse")

    report = oracle.check("sgd", refusing, dtypes=["float32"], laws=LAWS, process=False)
    (line,) = (line for line in str(report).splitlines() if "I refuse" in line and line[0] == "L")
    assert line.startswith("L1 step, L2 merging, ") and ", L24 use, float32, in 'step 1' and " in line


def adam(params, grads, moment1, moment2, beta1_pow, beta2_pow, *, lr, beta1, beta2, epsilon):
    """A right step, for parameters of which the arrays of powers can be written to the same shape."""
    for p, g, m, v, b1, b2 in zip(params, grads, moment1, moment2, beta1_pow, beta2_pow, strict=True):
        m += (1 - beta1) * (g - m)
        v += (1 - beta2) * (g * g - v)
        p -= lr * (m / (1 - b1)) / (np.sqrt(v / (1 - b2)) + epsilon)
        b1 *= beta1
        b2 *= beta2


def test_the_smallest_example_has_shapes_that_are_not_n():
    report = oracle.check("adam", adam, **SCALARS | {"laws": ["L4"]}, process=False)
    assert "params[0] of shape (), beta1_pow[0] and beta2_pow[0] of shape (1,)" in str(report)
    wrong = oracle.check("sgd", descending(lambda params: None, 0.5), **SCALARS | {"laws": ["L1"]}, process=False)
    assert "of shape" not in str(wrong) and "smallest example" in str(wrong)


def test_three_changes_of_a_process_are_named(monkeypatch):
    names = [f"REFOPT_{k}" for k in range(5)]

    def step(params, grads, *, lr):
        for name in names:
            monkeypatch.setenv(name, os.environ[name] + "x")

    for name in names:
        monkeypatch.setenv(name, "")
    report = oracle.check("sgd", step, dtypes=["float32"], laws=["L23"], process=False)
    text = "; ".join(f"os.environ[{name!r}]: expected unchanged, got another value" for name in names[:3])
    assert report.of("failed")[0].text.endswith(f": {text} and 2 more")


def test_an_error_of_a_step_has_300_characters_at_most():
    def step(params, grads, *, lr):
        raise ValueError("word " * 100)

    (failed, *_) = oracle.check("sgd", step, dtypes=["float32"], laws=["L6"], process=False).of("failed")
    assert failed.text.partition("got ")[2] == "ValueError: " + "word " * 57 + "..."
