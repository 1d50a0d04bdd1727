"""Cheats fail, with words that say what they did."""

import pytest

from oracle.cheats import CHEATS
from refopt import oracle


def test_there_are_many():
    assert len({step.__name__ for *_, step in CHEATS}) == len(CHEATS) >= 40


@pytest.mark.parametrize(("law", "words", "dtype", "step"), CHEATS, ids=[x[3].__name__ for x in CHEATS])
def test_a_cheat_fails(law, words, dtype, step):
    report = oracle.check("momentum", step, dtypes=[dtype], laws={"L1", law}, examples=0, diagnose=law == "L1")
    assert not report.ok and law in report.failed_laws, str(report)
    shown = [f"{x.label}: {x.text} {x.reasons}" for x in report.of("failed") if x.law == law]
    assert any(words in text for text in [*shown, str(report)]), "\n".join(shown)
