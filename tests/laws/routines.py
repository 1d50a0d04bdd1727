"""What laws are about, from the catalogue: routines, and the forms in which each is implemented."""

from inspect import isfunction

from refopt.catalog import ROUTINES
from refopt.oracle.exact.examples import examples
from refopt.oracle.exact.laws import LAWS, reference
from refopt.oracle.exact.placed import kernels

ALL = tuple(ROUTINES.values())
ELEMENTWISE = tuple(routine for routine in ALL if routine.elementwise)
WITH_NORMS = tuple(routine for routine in ALL if not routine.elementwise)
CARRYING = tuple(routine for routine in ELEMENTWISE if routine.scalars)
LARS = (ROUTINES["lars_momentum"],)
NOVOGRAD = (ROUTINES["novograd"],)
# One routine of each family of kernels: tables, chunks, gate and launches are made alike for all of a family. LAMB has
# those of NovoGrad, in refopt/gpu/norms, with sums of two kinds, as LARS has them.
OF_EACH_FAMILY = (ROUTINES["sgd"], CARRYING[0], *LARS, *NOVOGRAD)


def implementation(form, machine):
    """A function of a case: the reference, or the kernels of a form on a machine."""
    return reference if form == "reference" else kernels(form, machine)


def check_run(routine, run):
    """The laws of equal bits on the fixed cases of a routine; an error names the case."""
    for name, case in examples(routine):
        for law in LAWS:
            try:
                law(run, case)
            except AssertionError as error:
                raise AssertionError(f"case {name!r}: {error}") from error.__cause__


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
