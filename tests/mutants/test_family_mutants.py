"""The checks can fail: every mutant of a routine is found out, and what is right passes."""

import pytest
from laws.routines import check_run

from mutants.family import implementation, mutants
from refopt.catalog import ROUTINES
from refopt.oracle.wrong import OF

pytestmark = pytest.mark.slow  # tests of tests

FAMILY = [routine for routine in ROUTINES.values() if "merged" in routine.forms]
MUTANTS = [(routine, name) for routine in FAMILY for name in mutants(routine)]


@pytest.mark.parametrize("routine", FAMILY, ids=lambda routine: routine.name)
def test_what_is_right_passes(routine):
    check_run(routine, implementation(routine))


@pytest.mark.parametrize(("routine", "name"), MUTANTS, ids=lambda x: x if isinstance(x, str) else x.name)
def test_mutant_is_killed(routine, name):
    with pytest.raises(AssertionError, match=r"case .*(N4|N11)"):
        check_run(routine, mutants(routine)[name])


def test_there_are_many():
    assert all(len(OF[routine.name]) >= 3 for routine in FAMILY)
