"""Marks of laws: the routines, forms and dtypes by which they are parametrised."""

import pytest
from hypothesis import given, settings

from laws.routines import ALL, OF_EACH_FAMILY


def named(x):
    """A routine in a test's id."""
    return getattr(x, "name", None) or (x if isinstance(x, str) else None)


def each(*routines):
    """A mark: the test is of each of some routines."""
    return pytest.mark.parametrize("routine", routines, ids=named)


def pairs(routines, *others):
    """Routines with each of their forms, and with others such as ``reference`` before."""
    return [(routine, form) for routine in routines for form in (*others, *routine.forms)]


def of(rows):
    """A mark: the test is of some pairs of a routine and a form."""
    return pytest.mark.parametrize(("routine", "form"), rows, ids=named)


def of_families(rows):
    """`of`, for laws of what a family shares: make test tries one routine of each, make test-long all."""
    return of([pytest.param(*row, marks=[pytest.mark.slow] * is_shared(*row)) for row in rows])


def of_merged(rows):
    """`of_families`, for what all forms share with the merged one, which make test tries alone beside the reference."""
    return of([pytest.param(*row, marks=[pytest.mark.slow] * is_repeated(*row)) for row in rows])


def is_shared(routine, form):
    """Whether what a form's kernels share is tried by another routine of the family."""
    return form != "reference" and routine not in OF_EACH_FAMILY


def is_repeated(routine, form):
    """Whether what a form's kernels share is tried by another routine of the family, or by its merged form."""
    return is_shared(routine, form) or form not in ("reference", routine.merged_form)


routines = each(*ALL)
forms = of(pairs(ALL))
# Where all forms of a routine share what a law is about, one of them is enough.
both_sides = of_families([(routine, form) for routine in ALL for form in ("reference", routine.merged_form)])
forms_of_families = of_families(pairs(ALL))


def few(part=1, least=4, **strategies):
    """The test is of what strategies draw, for a part of the examples that a profile of Hypothesis's asks for.

    The first is the smallest, so there are four at least, unless an example costs much.
    """
    count = max(settings().max_examples // part, least)
    return lambda test: settings(max_examples=count)(given(**strategies)(test))
