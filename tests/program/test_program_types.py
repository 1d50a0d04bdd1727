"""What each type of op says of itself: slots, documentation, runners; and what is refused of a new one."""

import importlib
import inspect
import pkgutil
import re

import pytest

from refopt.program import Op, Program, Var, ops
from refopt.program.ops import TYPES, registry

FAMILIES = {f"refopt.program.ops.{module.name}" for module in pkgutil.iter_modules(ops.__path__)}
VAR = Var("a", (3,), "float32", persistable=True)


def names(slots):
    return tuple(slot.removesuffix("?") for slot in slots if slot != registry.ANY)


@pytest.mark.parametrize("known", TYPES.values(), ids=lambda known: known.name)
def test_types(known):
    """Documentation of whatever attribute, slot or type it speaks of; a module of the package; a function for a GPU."""
    assert known.doc.partition("\n")[0].endswith((".", ";")) and known.bind.__module__ in FAMILIES
    spoken = set(re.findall(r"`(\w+)`", known.doc))
    if known.bind.__qualname__ != "copy":  # which has a text for both ways
        assert spoken & {*names(known.inputs), *names(known.outputs)} or known.way == "message", "no slot is spoken of"
    if known.gpu:
        module, _, name = known.gpu.partition(":")
        function = getattr(importlib.import_module(module), name)
        assert inspect.isroutine(function) and [*inspect.signature(function).parameters] == ["context", "op"]


@pytest.mark.parametrize("known", TYPES.values(), ids=lambda known: known.name)
def test_slots_that_are_missing_or_unknown(known):
    """Of each type, whatever else is wrong with the op."""
    full = {side: {slot: ("a",) for slot in names(getattr(known, side))} for side in ("inputs", "outputs")}
    for side, word in (("inputs", "input"), ("outputs", "output")):
        for slot in getattr(known, side):
            if slot == registry.ANY or slot.endswith("?"):
                continue
            bad = full | {side: {name: x for name, x in full[side].items() if name != slot}}
            with pytest.raises(TypeError, match=f"main.*{slot}: expected variables, got none"):
                check(known, bad)
        if registry.ANY not in getattr(known, side):
            with pytest.raises(TypeError, match=f"main.*other: expected .*, got an unknown {word}"):
                check(known, full | {side: full[side] | {"other": ("a",)}})


def check(known, slots):
    """The check of an op alone, as a program makes it."""
    try:
        ops.check(Program({"a": VAR}), Op(known.name, **slots))
    except TypeError as error:
        raise TypeError(f"main {error}") from None


@pytest.mark.parametrize(("arguments", "about", "message"), [
    (("concat",), {}, "op: name: expected a new type, got 'concat', which is registered already"),
    (("new",), {"way": "air"}, "op: way: expected one of memory, network, message, host, got 'air'")])
def test_types_that_cannot_be_registered(arguments, about, message):
    before = dict(TYPES)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ops.op(*arguments, **about)
    assert before == TYPES


def test_ops_of_the_startup_are_refused_in_a_step():
    for known in (known for known in TYPES.values() if known.startup):
        slots = {side: {slot: ("a",) for slot in getattr(known, side)} for side in ("inputs", "outputs")}
        with pytest.raises(ValueError, match=rf"main\[0\] {known.name}: expected it in startup"):
            Program({"a": VAR}, (), [Op(known.name, **slots)]).check()
