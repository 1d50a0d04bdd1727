"""`refopt.oracle.check` of every optimizer of PyTorch, optax and timm that is one of refopt's routines."""

import pytest

from peers import verdicts
from peers.test_timm import timm  # noqa: F401
from peers.trials import check
from refopt.catalog import ROUTINES

OF_EACH_KIND = "lion", "lars_momentum"  # elementwise, and with norms


def rows(table):
    """The rows of a library: wrong ones and, for each routine and its options, the first right one; the rest are slow.

    Other tests hold timm and optax to their formulas, so only one routine of each kind is tried here.
    """
    right = [row for row in table if not row.fails]
    first = {id(row) for row in {ruling(row): row for row in reversed(right)}.values()}
    often = [bool(row.fails) or (id(row) in first and (table is verdicts.TORCH or row.routine in OF_EACH_KIND))
             for row in table]
    params = [pytest.param(row, marks=[] if x else [pytest.mark.slow]) for row, x in zip(table, often, strict=True)]
    return pytest.mark.parametrize("row", params, ids=str)


def ruling(row):
    """What tells the rule of a row: lists and fused kernels have the same one."""
    return row.routine, *sorted((name, str(x)) for name, x in row.options.items() if name not in ("foreach", "fused"))


def hold(row, subject):
    """The oracle's verdict on a row is the one that is expected."""
    named = any("the rule of" in text for text in row.fails.values())  # by an option, so that none is looked for
    numbers = {"examples": 0, "dtypes": row.dtypes, "laws": row.laws, "diagnose": not named}
    report = check(row.routine, subject, **numbers, **row.options)
    assert set(report.wrong) == set(row.fails), report
    for law, text in row.fails.items():
        assert text in report.details(), f"{law}: {report}"
    if not row.fails:
        assert report.ok and set(report.largest) == set(row.dtypes)
        ratios = [ratio for slots in report.largest.values() for ratio in slots.values()]
        assert 0.02 < max(ratios) <= 1, report
    return report


@rows(verdicts.TORCH)
def test_of_torch(row):
    optim = pytest.importorskip("torch.optim")
    hold(row, getattr(optim, row.name))


@rows(verdicts.OPTAX)
def test_of_optax(row):
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    hold(row, getattr(optax, row.name))
    assert not jax.config.jax_enable_x64


@rows(verdicts.TIMM)
def test_of_timm(timm, row):  # noqa: F811
    hold(row, timm(row.name))


def test_every_routine_is_somebodys():
    """And every one is right somewhere, in fp32 and but for NAdam's product and NovoGrad's norm in fp64."""
    right = {row.routine for row in (*verdicts.TORCH, *verdicts.OPTAX, *verdicts.TIMM) if not row.fails}
    assert right == {*ROUTINES}
