"""What laws are parametrised by, from the catalogue: routines, and the forms in which each is implemented."""

from inspect import isfunction

import pytest
from hypothesis import settings

from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import SIGNATURES
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import kernels

ALL = tuple(ROUTINES.values())
ELEMENTWISE = tuple(routine for routine in ALL if routine.elementwise)
WITH_NORMS = tuple(routine for routine in ALL if not routine.elementwise)
CARRYING = tuple(routine for routine in ELEMENTWISE if routine.scalars)
LARS = (ROUTINES["lars_momentum"],)
NOVOGRAD = (ROUTINES["novograd"],)
# One routine of each family of kernels: tables, chunks, gate and launches are made alike for all of a family.
OF_EACH_FAMILY = (ROUTINES["sgd"], CARRYING[0], *WITH_NORMS)


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
implementations = of(pairs(ALL, "reference"))
# Where all forms of a routine share what a law is about, one of them is enough.
both_sides = of([(routine, form) for routine in ALL for form in ("reference", routine.merged_form)])
merged_forms = of([(routine, form) for routine, form in pairs(ALL) if routine.forms[form].merged])
forms_of_families, implementations_of_families = of_families(pairs(ALL)), of_families(pairs(ALL, "reference"))
signatures = pytest.mark.parametrize("dtypes", SIGNATURES, ids="-".join)


def implementation(form, machine):
    """A function of a case: the reference, or the kernels of a form on a machine."""
    return reference if form == "reference" else kernels(form, machine)


def uses(routine, name):
    """Whether a routine's rule, or a function of refopt.cpu that it calls, uses a function of some name."""
    waiting, seen = [routine.rule], set()
    while waiting:
        function = waiting.pop()
        seen.add(function)
        names = function.__code__.co_names
        if name in names:
            return True
        called = (function.__globals__.get(each) for each in names)
        waiting += [each for each in called if isfunction(each) and each not in seen]
    return False


def optional_states(routine):
    """The names of the states that a routine may do without."""
    return tuple(slot.name for slot in routine.slots if slot.optional and slot.name in routine.states)


def few(part):
    """A part of the examples that a profile of Hypothesis's asks for, and four at least."""
    return settings(max_examples=max(settings().max_examples // part, 4))
