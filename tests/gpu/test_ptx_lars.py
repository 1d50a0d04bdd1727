"""What the compiler makes of LARS's kernels with remainders, and with what a gradient check has found."""
# ruff: noqa: E402

import re

import needs
import pytest

needs.compiler()

from gpu import kept_ptx
from gpu.test_ptx import assert_not_spilled, exact_ptx, kernels_of
from refopt.catalog import LARS_MOMENTUM
from refopt.gpu.vectors import POLICIES
from refopt.oracle.exact.build import remainders
from refopt.oracle.exact.lars import STEP, gate, make
from refopt.oracle.exact.placed import PlacedCase

forms = pytest.mark.parametrize("form", LARS_MOMENTUM.forms)
norms = pytest.mark.parametrize("norm_of", LARS_MOMENTUM.choices["norm_of"])


def given_kernels(form, recorder, given):
    """By name, the kernels of a form for a step that is given something or nothing, and their arguments' types."""
    given = {name: recorder.to_device(value) for name, value in given.items()}
    PlacedCase(recorder, make([5])).plan(form, **STEP, **given)
    return dict(recorder.kernels)


@pytest.mark.clause("N3")
@forms
def test_kernels_are_exact_and_spared_what_is_not_given(form, recorder, request):
    """With a factor, too; a step that is given nothing has kernels that do not look for it."""
    def parameters(ptx):
        """How many of the last two, factor and flag, are loaded."""
        names = re.findall(r"\.param \.u64 (\w+)", ptx[: ptx.index("{")])
        return sum(f"[{name}]" in ptx for name in names[-2:])

    plain, full = (given_kernels(form, recorder, given) for given in ({}, gate(1.0)))
    assert plain.keys() == full.keys()
    both = {f"{name} {what}": x for what, of in (("plain", plain), ("full", full)) for name, x in of.items()}
    if kept_ptx.tested(request, both):
        return
    for name, (made, signature) in full.items():
        ptx = exact_ptx(made, signature)
        assert_not_spilled(ptx)
        plain_made, plain_signature = plain[name]
        assert (parameters(plain_made.ptx(plain_signature)), parameters(ptx)) == (0, 2), name


def ptx_of(form, dtypes, norm_of, recorder, request):
    """The PTX of each kernel; none if the test has passed on them before."""
    made = kernels_of(make([5], dtypes, norm_of=norm_of), form, recorder)
    return {} if kept_ptx.tested(request, made) else {name: exact_ptx(*kernel) for name, kernel in made.items()}


@pytest.mark.clause("N3")
@forms
@norms
def test_kernels_are_exact_and_vectorised(form, norm_of, recorder, request):
    """Both halves by vectors, rounded as integers, nothing in local memory."""
    texts = ptx_of(form, remainders()[0], norm_of, recorder, request)
    for name, ptx in texts.items():
        assert re.search(r"ld\.global\.(L2::cache_hint\.)?v2\.b32", ptx), name
        assert_not_spilled(ptx)
        assert "cvt.rn.bf16" not in ptx, name
    assert not texts or any("st.global.v2.b32" in ptx for ptx in texts.values())


@pytest.mark.parametrize(("norm_of", "kept"), [("param", 4), ("master", 6)])
def test_the_cache_is_asked_to_keep_all_that_is_read_again(norm_of, kept, recorder, request):
    """Two vector loads of the gradient in a row, and of each half that is normed; four rows, if they are unrolled."""
    if not (texts := ptx_of("two_launches", remainders()[0], norm_of, recorder, request)):
        return
    ptx = texts["merged_lars_momentum_norms"]
    assert ptx.count("ld.global.L2::cache_hint") in (kept, 4 * kept)
    assert "ld.global.v2.b32" not in ptx
    assert f"{POLICIES['keep']:#x}" in ptx and f"{POLICIES['pass']:#x}" not in ptx
