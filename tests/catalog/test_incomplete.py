"""An addition that is not complete says what it lacks: a row of the catalogue, a rule, a function."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest

from refopt import catalog, cpu, gpu
from refopt.catalog import ADAM, LAMB, SGD, Form, Hyper, Slot
from refopt.checks.rows import FRACTION
from refopt.cpu.merged import merged
from refopt.cpu.routine import routine as declared
from refopt.gpu import elementwise, family, rules
from refopt.gpu.rules import Rule
from refopt.gpu.target import device_function
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments

SLOTS = SGD.slots
ROWS = {"slots: expected params and grads first, got grads, params, master_params":
            {"slots": (SLOTS[1], SLOTS[0], SLOTS[2])},
        "slots: expected optional master_params last, got params, grads": {"slots": SLOTS[:2]},
        "slots: expected optional master_params last, got params, grads, master_params":
            {"slots": (*SLOTS[:2], SLOTS[2]._replace(optional=False))},
        "slots: expected all but grads to be written, got master_params, params":
            {"slots": (*SLOTS[:2], Slot("moment", written=False), SLOTS[2])},
        "expected each name for only one slot, number or choice, got params, grads, moment, moment, master_params, ":
            {"slots": (*SLOTS[:2], Slot("moment", written=True), Slot("moment", written=True), SLOTS[2])},
        "slots: power: initial: expected a number or a hyperparameter, got 'beta1'":
            {"slots": (*SLOTS[:2], Slot("power", written=True, scalar=True, initial="beta1"), SLOTS[2])},
        "slots: moment: initial: expected none, since it is not a scalar, got 0.0":
            {"slots": (*SLOTS[:2], Slot("moment", written=True, initial=0.0), SLOTS[2])},
        "hypers: expected rescale_grad, got lr, seed": {"hypers": (SGD.hypers[0], SGD.hypers[-1])},
        "hypers: expected seed last, as elementwise kernels take it, got lr, l2_decay, rescale_grad":
            {"hypers": SGD.hypers[:-1]},
        "choices: expected rounding, as elementwise kernels take it, got none": {"choices": {}},
        "choices: rounding: expected two values or more, got 'nearest'": {"choices": {"rounding": ("nearest",)}},
        "forms: expected none or at least one merged, got separate": {"forms": {"separate": Form(1, merged=False)}},
        "traffic: separate: expected passes over slots, got moment": {"traffic": lambda form, dtypes: {"moment": 1}},
        "traffic: separate: expected passes over every slot, got none over grads":
            {"traffic": lambda form, dtypes: {"params": 1}}}


def said(call, *arguments, **named):
    """The words in which a call is refused."""
    with pytest.raises(TypeError) as caught:
        call(*arguments, **named)
    return str(caught.value)


@pytest.mark.parametrize("message", ROWS)
def test_a_row(message):
    assert said(catalog.Routine, **(SGD._asdict() | ROWS[message])).startswith(f"catalog: sgd: {message}")
    assert catalog.Routine(**SGD._asdict()) == SGD


def new_row(**changes):
    return catalog.Routine(**(ADAM._asdict() | {"name": "new"} | changes))


EXPECTED = (
    "merged_new: expected a function new(real, present, epsilon_at, decay, maximize) in refopt/gpu/rules/new.py, which "
    "returns its Rule")


def test_a_routine_without_a_rule(monkeypatch):
    """The rule is looked up by the routine's name, and what is asked for has the routine's choices."""
    assert said(rules.rule_of, new_row()) == f"{EXPECTED}; got no such file"
    module = types.ModuleType("refopt.gpu.rules.new")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert said(rules.rule_of, new_row()) == f"{EXPECTED}; got no such function"
    module.new = lambda real, present, epsilon_at: RIGHT
    assert rules.rule_of(new_row()) is module.new


def test_a_rule_that_imports_what_is_not_there(monkeypatch):
    def found(name):
        raise ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")

    monkeypatch.setattr(rules.importlib, "import_module", found)
    with pytest.raises(ModuleNotFoundError, match="elsewhere"):
        rules.rule_of(new_row())


def test_every_rule_is_a_routines():
    """No file of a rule is left over, and none is shared."""
    files = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == rules.RULES.keys() == catalog.ROUTINES.keys()
    assert all(rule.__module__ == f"refopt.gpu.rules.{name}" for name, rule in rules.RULES.items())


def test_a_routine_without_a_reference(monkeypatch):
    monkeypatch.setitem(rules.RULES, "new", rules.RULES["sgd"])
    words = said(family.functions, catalog.Routine(**(SGD._asdict() | {"name": "new"})))
    assert words.startswith("merged_new: expected a function of that name in refopt.cpu, got none")


@device_function
def two(p, g, m, u, k):
    return p, m


@device_function
def one(h, s):
    return (s[0],)


RIGHT = rules.RULES["adam"](np.float32, frozenset(), "corrected", "l2", False)
RULES = {"advance: expected a function, got NoneType": RIGHT._replace(advance=None),
         "advance: expected a tuple of beta1_pow, beta2_pow, got 1": RIGHT._replace(advance=one),
         "rule: expected a function, got NoneType": Rule(None, advance=RIGHT.advance),
         "rule: expected a tuple of the parameter, moment1, moment2, got 2": RIGHT._replace(rule=two),
         "rule: expected a tuple of the parameter, moment1, moment2, got float32":
             RIGHT._replace(rule=device_function(lambda p, g, m, u, k: p))}


@pytest.mark.parametrize("message", RULES)
def test_a_rule(executor, monkeypatch, message):
    monkeypatch.setitem(rules.RULES, "adam", lambda real, present, **choices: RULES[message])
    elementwise.merged_update.cache_clear()
    case = make(ADAM, [4])
    slots = {name: xs and [executor.to_device(x) for x in xs] for name, xs in case.slots.items()}
    positional, _ = arguments(ADAM, slots)
    try:
        assert said(gpu.merged_adam, *positional, **step_of(ADAM)) == f"merged_adam: {message}"
    finally:
        elementwise.merged_update.cache_clear()


NORM_RULE = rules.RULES["lamb"](np.float32, frozenset(), False)
NORM_RULES = {
    "lamb: expected a NormRule, got Rule": RIGHT,
    "close: expected a function, got NoneType": NORM_RULE._replace(close=None),
    "close: expected a tuple of rate, rest1, rest2, beta1_pow, beta2_pow, got 3":
        NORM_RULE._replace(close=lambda sums, k: (sums[0], k[0], k[1])),
    "moments: expected a tuple of moment1, moment2, got 1": NORM_RULE._replace(moments=lambda p, g, m, u, k: (m,)),
    "normed: expected a tuple of one or two numbers, got 3": NORM_RULE._replace(normed=lambda p, g, m, u, k: (p, g, m)),
    "rule: expected a tuple of the parameter, got float32": NORM_RULE._replace(rule=lambda p, m, u, k: p),
    "updates: expected params, stored_params, grads and states, got moment":
        NORM_RULE._replace(updates=("params", "moment"))}


@pytest.mark.parametrize("message", NORM_RULES)
def test_a_rule_with_norms(monkeypatch, message):
    """The first that is incomplete is an error already when plans are made ready, by the import of refopt.gpu."""
    monkeypatch.setitem(rules.RULES, "lamb", lambda real, present, **choices: NORM_RULES[message])
    assert said(family.planner, LAMB) == f"merged_lamb: {message}"


REFERENCES = {
    "5 values, the new parameter and moment1, moment2, beta1_pow, beta2_pow, got 4": lambda *x, **_: (x[0], *x[2:5]),
    "5 values, the new parameter and moment1, moment2, beta1_pow, beta2_pow, got None for moment2": (
        lambda *x, **_: (x[0], x[2], None, *x[4:6]))}


@pytest.mark.parametrize("message", REFERENCES)
def test_a_rule_of_the_reference(message):
    """Nothing is stored of what does not fit."""
    row = ADAM._replace(slots=tuple(slot for slot in ADAM.slots if slot.name != "moment2_max"))
    case = make(row, [4])
    before = {name: [x.tobytes() for x in xs or ()] for name, xs in case.slots.items()}
    assert said(merged, row, REFERENCES[message], case.slots, step_of(row)) == f"merged_adam: rule: expected {message}"
    assert {name: [x.tobytes() for x in xs or ()] for name, xs in case.slots.items()} == before


def test_every_routine_is_offered():
    for name, routine in catalog.ROUTINES.items():
        for module in (cpu, gpu):
            assert {name, routine.merged_name} <= {*module.__all__}
    assert all(isinstance(row, Hyper) for routine in catalog.ROUTINES.values() for row in routine.hypers)


def merged_new(params, grads, moment, *, lr, eta=0.5, at="here", flip=False, rescale_grad=1.0, other=None,
               master_params=None, grad_factor=None, found_inf=None, rounding="nearest", seed=0):
    """Update.

    Args:
        moment, eta, at, flip, other: of no meaning.
    """


STATES = [Slot("moment"), Slot("other", optional=True)]
WHERE = {"at": ("here", "there")}
DECLARED = {
    "arguments by position: expected params, grads, got params, grads, moment": dict(states=STATES[1:], choices=WHERE),
    "arguments that are None by default: expected master_params, grad_factor, found_inf, got other, master_params, "
    "grad_factor, found_inf": dict(states=STATES[:1], choices=WHERE),
    "words by default: expected none, got at": dict(states=STATES),
    "words by default: expected at, to, got at": dict(states=STATES, choices=WHERE | {"to": ("x", "y")}),
    "at: default: expected there, got here": dict(states=STATES, choices={"at": ("there", "here")}),
    "limits: expected none, got mu": dict(states=STATES, choices=WHERE, limits={"mu": FRACTION})}


@pytest.mark.parametrize("message", DECLARED)
def test_a_row_that_is_not_the_signatures(message):
    words = said(declared, merged_new, SGD.rule, source="none", **DECLARED[message])
    assert words == f"{__name__}: merged_new: {message}"


def test_a_row_is_read_from_the_signature():
    row = declared(merged_new, SGD.rule, source="none", states=STATES, choices=WHERE, limits={"eta": FRACTION})
    assert [(x.name, x.default) for x in row.hypers] == [("lr", None), ("eta", 0.5), ("rescale_grad", 1.0), ("seed", 0)]
    assert row.hypers[1].below == 1 and row.hypers[0].per_tensor
    assert row.choices == {"at": ("here", "there"), "flip": (False, True), "rounding": ("nearest", "stochastic")}
    assert row.slot_names == ("params", "grads", "moment", "other", "master_params")
    assert merged_new.__doc__.count("of no meaning") == 3  # neighbours share a line
