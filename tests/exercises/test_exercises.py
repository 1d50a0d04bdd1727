"""The exercises: solutions pass, stubs and wrong answers fail and say why, notebooks are those of the solutions."""

import pytest
from exercise import generate, solution

from . import wrong_merged, wrong_one_kernel, wrong_steps
from .answers import answer, halves

NAMES = solution.names()
WRONG = wrong_one_kernel.WRONG | wrong_merged.WRONG | wrong_steps.WRONG
KINDS = ("lazy", "nearly", "slow")


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_passes(name):
    exercise, right, _ = solution.load(name)
    verdict = exercise.check(right)
    assert verdict.ok, verdict.text
    assert verdict.text.startswith("Right.\n") and "reference" in verdict.text


@pytest.mark.parametrize("name", NAMES)
def test_a_stub_fails_with_a_word(name, tmp_path):
    exercise, stub = answer(name, tmp_path, [None] * len(halves(name)))
    verdict = exercise.check(stub)
    assert not verdict.ok and verdict.text.startswith("Not yet. ")
    assert "FILL ME IN" in generate.stubbed(solution.text(name)) or "CHANGE ME" in generate.stubbed(solution.text(name))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_answer_is_told_why(name, kind, tmp_path):
    fills, *words = WRONG[name][kind]
    exercise, wrong = answer(name, tmp_path, fills)
    verdict = exercise.check(wrong)
    assert not verdict.ok
    for expected in words:
        assert expected in verdict.text, verdict.text


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_up_to_date(name):
    """If this fails, run make exercises."""
    assert generate.path(name).read_text() == generate.notebook(name)


def test_the_index_is_up_to_date():
    """If this fails, run make exercises."""
    assert generate.INDEX.read_text() == generate.index()
    assert sorted(generate.path(name) for name in NAMES) == sorted(generate.FOLDER.glob("*.ipynb"))
    assert len(NAMES) >= 16


@pytest.mark.parametrize("name", NAMES)
def test_a_link_leads_to_a_page(name):
    assert (generate.FOLDER / generate.header(name).link.partition("#")[0]).is_file()
