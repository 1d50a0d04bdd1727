"""Muon: its formula, lists of tensors, how they are stored, and what is refused."""

import numpy as np
import pytest
from gpu.test_muon import copied
from gpu.test_muon import lists as lists_of

from refopt import catalog, cpu
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.blocks import Blocks
from refopt.cpu.muon import COEFFICIENTS, MUON

pytest.importorskip("ml_dtypes")
SHAPES = (6, 4), (3, 8), (5, 5)
NUMBERS = dict(lr=0.1, iterations=2)


def lists(dtype="float32", seed=0):
    return lists_of(SHAPES, dtype, seed=seed)


def raw(*xss):
    return [x.tobytes() for xs in xss for x in xs]


def by_svd(p, g, v, *, lr, mu=0.95, weight_decay=0.1, coefficients=COEFFICIENTS, iterations=5, use_nesterov=True,
           average=True, adjust_lr="original", rescale_grad=1.0):
    """The formula, by singular values."""
    g = g * rescale_grad
    v = mu * v + (1 - mu) * g if average else mu * v + g
    u = v if not use_nesterov else mu * v + (1 - mu) * g if average else mu * v + g
    left, s, right = np.linalg.svd(u, full_matrices=False)
    s = s / np.linalg.norm(s)
    for a, b, c in [coefficients] * iterations if np.ndim(coefficients) == 1 else coefficients:
        s = a * s + b * s**3 + c * s**5
    rows, columns = p.shape
    ratio = {"original": max(1, rows / columns) ** 0.5, "match_rms_adamw": 0.2 * max(rows, columns) ** 0.5,
             "spectral_unclamped": (rows / columns) ** 0.5, "none": 1}[adjust_lr]
    return p - lr * weight_decay * p - lr * ratio * (left * s) @ right, v


@pytest.mark.parametrize("named", [{}, {"mu": 0.5, "weight_decay": 0.0}, {"use_nesterov": False}, {"average": False},
                                   {"average": False, "use_nesterov": False}, {"adjust_lr": "match_rms_adamw"},
                                   {"adjust_lr": "spectral_unclamped"}, {"adjust_lr": "none"},
                                   {"iterations": 3, "coefficients": [2, -1.5, 0.5]},
                                   {"iterations": 2, "coefficients": [COEFFICIENTS, (1.5, -0.5, 0)]},
                                   {"iterations": 2, "coefficients": np.array([COEFFICIENTS, (1.5, -0.5, 0)])},
                                   {"rescale_grad": 0.25, "average": False}], ids=str)
def test_the_formula(named):
    """In fp64, each choice, three steps of tall, wide and square matrices."""
    params, grads, velocities = lists("float64")
    expected = list(zip(params, velocities, strict=True))
    params, velocities = copied([params, velocities])
    for seed in range(3):
        grads = lists("float64", seed=seed)[1]
        expected = [by_svd(p, g, v, lr=0.1, **named) for (p, v), g in zip(expected, grads, strict=True)]
        cpu.merged_muon(params, grads, velocities, lr=0.1, compute="float64", **named)
    for p, v, (q, w) in zip(params, velocities, expected, strict=True):
        assert np.allclose(p, q, rtol=1e-11, atol=1e-11) and np.allclose(v, w, rtol=1e-13, atol=1e-14)


@pytest.mark.clause("N1")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_are_stored_once_rounded(dtype):
    """Parameters, gradients and velocities widen; masters are the exact parameters."""
    params, grads, velocities = lists(dtype)
    wide = [[x.astype(np.float32) for x in xs] for xs in (params, grads, velocities)]
    narrow = copied([params, grads, velocities])
    masters = copied(wide[:1])[0]
    under = copied([params, grads, velocities])
    cpu.merged_muon(*wide, **NUMBERS)
    cpu.merged_muon(*narrow, **NUMBERS)
    cpu.merged_muon(*under, master_params=masters, **NUMBERS)
    rounded = [[x.astype(numpy_dtype(dtype)) for x in xs] for xs in wide]
    assert raw(narrow[0], narrow[2]) == raw(rounded[0], rounded[2]) == raw(under[0], under[2])
    assert raw(masters) == raw(wide[0])


def test_a_routine_for_matrices_is_known_apart():
    """What goes through the routines gives them tensors of every shape."""
    assert catalog.KNOWN.keys() - catalog.ROUTINES.keys() == {"muon", "normuon"} and catalog.KNOWN["muon"] is MUON
    assert {"muon", "merged_muon", "normuon", "merged_normuon"} <= set(cpu.__all__)
    numbers = {"iterations": 5.0, "compute": "bfloat16"}
    assert MUON.matrix_arguments(MUON, {"params": [ONES]}, numbers)[0]["cut"].ends == ([0, 4], [0, 6])
    with pytest.raises(ValueError, match=r"params\[1\]: expected a matrix, got shape \(6,\)"):
        MUON.matrix_arguments(MUON, {"params": [ONES, ONES[0]]}, numbers)
    assert MUON.launches([catalog.Spec(24, ("float32",) * 3)], "merged", 5) == 18


ONES = np.ones((4, 6), np.float32)
REFUSED = {
    r"params[0]: expected a matrix, got shape (6,), which merged_adamw takes": (ONES[0], {}),
    r'params[0]: expected a matrix, got shape (2, 2, 6); Blocks(of="experts") takes the last two': (
        ONES.reshape(2, 2, 6), {}),
    "params[0]: expected output channels outermost in memory, got axes (1, 0)": (
        np.asfortranarray(ONES), {"blocks": Blocks(of="convolution")}),
    "blocks.of: expected one of matrix, experts, convolution, got 'heads'": (ONES, {"blocks": Blocks(of="heads")}),
    "blocks: expected a list of Blocks, got int": (ONES, {"blocks": 3}),
    "blocks[0]: expected Blocks, got 3": (ONES, {"blocks": [3]}),
    "blocks: expected one or one per parameter, 1, got 2": (ONES, {"blocks": [Blocks()] * 2}),
    "blocks[0].rows: expected a divisor of the 4 rows of params[0], got 3": (ONES, {"blocks": [Blocks(rows=3)]}),
    "blocks.rows: expected an integer of at least 1, got 0": (ONES, {"blocks": Blocks(rows=0)}),
    "blocks.columns: expected sizes whose sum is the 6 columns of params[0], got a sum of 5": (
        ONES, {"blocks": Blocks(columns=(2, 3))}),
    "blocks.columns[1]: expected an integer of at least 1, got 0": (ONES, {"blocks": Blocks(columns=(6, 0))}),
    "blocks.rows: expected a list of sizes, got str": (ONES, {"blocks": Blocks(rows="2")}),
    "coefficients: expected three numbers, got 2": (ONES, {"coefficients": (1, 2)}),
    "coefficients[1]: expected three numbers, got 4": (ONES, {"coefficients": [(1, 2, 3), (1, 2, 3, 4)]}),
    "coefficients: expected a triple for each of 2 iterations, got 1": (ONES, {"coefficients": [(1, 2, 3)]}),
    "coefficients[0]: expected a list of numbers, got float": (ONES, {"coefficients": [1.0, (1, 2, 3)]}),
    "coefficients: expected a list of numbers or of triples, got float": (ONES, {"coefficients": 1.0}),
    "restarts: expected a list of iterations, such as (2,), got ndarray": (ONES, {"restarts": np.array([2])}),
    "coefficients[2]: expected a number of at least -3e+38 and of at most 3e+38, got nan": (
        ONES, {"coefficients": (1, 2, np.nan)}),
    "iterations: expected a whole number at least 0 and below 100, got 100": (
        ONES, {"iterations": 100}),
    "compute: expected one of bfloat16, float16, float32, float64, got 'tf32'": (ONES, {"compute": "tf32"}),
    "adjust_lr: expected one of original, match_rms_adamw, spectral_unclamped, none, got 'moonshot'": (
        ONES, {"adjust_lr": "moonshot"})}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    """With the argument, what was expected and what came; nothing is changed then."""
    param, named = REFUSED[message]
    arrays = [np.copy(param, order="K") for _ in range(3)]
    with pytest.raises((TypeError, ValueError)) as caught:
        cpu.merged_muon(*([x] for x in arrays), **NUMBERS | named)
    assert str(caught.value).startswith(f"merged_muon: {message}")
    assert raw(arrays) == [param.tobytes()] * 3
