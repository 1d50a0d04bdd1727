"""The tables that the oracle takes optimizers by have every option of the libraries' classes, and no other."""

import inspect

import pytest
from maps import variants

from peers.test_timm import timm  # noqa: F401

ENTRIES = variants.entries()
MODULES = {"Lamb": "lamb", "Lars": "lars", "Lion": "lion", "NvNovoGrad": "nvnovograd", "AdamWLegacy": "adamw",
           "SGDW": "sgdw", "RMSpropTF": "rmsprop_tf", "NAdamW": "nadamw", "RAdamLegacy": "radam"}
# Whose default is another formula, so that it is right only with the option.
OTHERS = {("timm.optim", "Lamb", "max_grad_norm"), ("optax", "adam", "nesterov")}


@pytest.fixture
def defaults(timm):  # noqa: F811
    """The options of an optimizer of a library, with their defaults."""

    def of(library, name):
        if library == "timm.optim":
            thing = timm(f"{MODULES[name]}.{name}")
        else:
            thing = getattr(pytest.importorskip(library), name)
        parameters = list(inspect.signature(thing).parameters.values())[library != "optax" :]
        return {p.name: p.default for p in parameters}

    return of


OPTIMIZERS = list(dict.fromkeys((entry.library, entry.name) for entry in ENTRIES))


@pytest.mark.parametrize(("library", "name"), OPTIMIZERS, ids=lambda x: x)
def test_every_option_is_in_the_table(defaults, library, name):
    """As a number, a choice, what has to be so, or what leaves the formula as it is."""
    known = set(variants.FREE[library])
    for entry in (x for x in ENTRIES if (x.library, x.name) == (library, name)):
        known |= entry.arguments.keys() | entry.only.keys()
    assert not defaults(library, name).keys() - known


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda x: f"{x.library}-{x.name}-{x.routine}")
def test_no_option_of_the_table_is_nobodys(defaults, entry):
    assert not (entry.arguments.keys() | entry.only.keys()) - defaults(entry.library, entry.name).keys()


def test_by_default_they_are_what_the_table_says(defaults):
    others = set()
    for entry in ENTRIES:
        own = defaults(entry.library, entry.name)
        unlike = {theirs for theirs, value in entry.only.items() if own.get(theirs, value) != value}
        others |= {(entry.library, entry.name, theirs) for theirs in unlike}
    assert others == OTHERS
