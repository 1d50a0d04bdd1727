"""`refopt.oracle.check` of timm's optimizers on the CPU."""

import pytest
from peers.test_timm import timm  # noqa: F401

from refopt import oracle

FREE = {"max_grad_norm": None}
RIGHT = [
    ("lamb", "lamb.Lamb", FREE),
    ("lamb", "lamb.Lamb", FREE | {"always_adapt": True}),
    ("lars_momentum", "lars.Lars", {}),
    ("lars_momentum", "lars.Lars", {"always_adapt": True}),
    ("lion", "lion.Lion", {}),
    ("adamw", "adamw.AdamWLegacy", {}),
    ("momentum", "sgdw.SGDW", {}),
]


@pytest.mark.parametrize(("routine", "name", "options"), RIGHT)
@pytest.mark.parametrize("foreach", [False, True])
def test_right_ones_pass(timm, routine, name, options, foreach):  # noqa: F811
    report = oracle.check(routine, timm(name), laws=["L1"], examples=2, foreach=foreach, **options)
    report.raise_if_failed()
    assert list(report.largest) == ["float32", "float64"]


def test_novograd_keeps_its_norm_in_fp32(timm):  # noqa: F811
    novograd = timm("nvnovograd.NvNovoGrad")
    oracle.check("novograd", novograd, dtypes=["float32"], laws=["L1"]).raise_if_failed()
    report = oracle.check("novograd", novograd, dtypes=["float64"], laws=["L1"])
    assert report.wrong == ["L1"]
    assert "second_moment" in str(report)


def test_lamb_counts_the_steps_of_a_group(timm):  # noqa: F811
    """Those of a tensor that had no gradient are counted as well."""
    report = oracle.check("lamb", timm("lamb.Lamb"), max_grad_norm=None, dtypes=["float32"], laws=["L15"])
    assert report.wrong == ["L15"]
    assert "beta1_pow" in str(report)


def test_lion_hides_nan(timm):  # noqa: F811
    report = oracle.check("lion", timm("lion.Lion"), dtypes=["float32"], laws=["L6"])
    assert [item.label for item in report.of("failed")] == ["nan in grads"]


def test_radam_has_fp32_alone(timm):  # noqa: F811
    radam = timm("radam.RAdamLegacy")
    oracle.check("radam", radam, dtypes=["float32"], laws=["L1"]).raise_if_failed()
    report = oracle.check("radam", radam, dtypes=["float64"], laws=["L1"])
    assert "expected an array of float64 of shape (300,), got one of float32" in str(report)


@pytest.mark.parametrize(
    ("routine", "name", "note"),
    [
        ("lamb", "lamb.Lamb", "max_grad_norm=1.0: the rule of lamb is that of None"),
        ("rmsprop", "rmsprop_tf.RMSpropTF", ""),
        ("nadam", "nadamw.NAdamW", "weight_decay=0.01: the rule of nadam is that of 0"),
    ],
)
def test_other_formulas_fail(timm, routine, name, note):  # noqa: F811
    report = oracle.check(routine, timm(name), dtypes=["float32"], laws=["L1"])
    assert report.wrong == ["L1"]
    assert not note or note in report.notes
