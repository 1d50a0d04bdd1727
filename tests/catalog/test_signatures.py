"""A routine has one signature: the reference's is the kernel's, defaults are the catalogue's, each name counts."""

import inspect
from functools import cache, partial

import numpy as np
import pytest

from refopt import cpu, gpu
from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments

ROWS = list(ROUTINES.values())
routines = pytest.mark.parametrize("routine", ROWS, ids=lambda routine: routine.name)
OWN = {"form", "stream"}  # of functions of `refopt.gpu`
GATE = {"grad_factor": 0.25, "found_inf": 1.0}


def parameters(function):
    return dict(inspect.signature(function).parameters)


def same(function, twin):
    """The parameters of both are alike, but for those of kernels."""
    assert parameters(function) == {name: x for name, x in parameters(twin).items() if name not in OWN}


@routines
def test_kernels_have_the_signature_of_the_reference(routine):
    for name in (routine.merged_name, routine.name):
        same(getattr(cpu, name), getattr(gpu, name))
        assert parameters(getattr(gpu, name)).keys() >= OWN


@routines
def test_every_function_says_what_it_is(routine):
    for name in (routine.merged_name, routine.name):
        assert getattr(cpu, name).__doc__ and f"`refopt.cpu.{name}`" in getattr(gpu, name).__doc__
        assert all(form in getattr(gpu, name).__doc__ for form in routine.forms)


@routines
def test_defaults_are_those_of_the_catalogue(routine):
    given = parameters(getattr(cpu, routine.merged_name))
    expected = {hyper.name: hyper.default for hyper in routine.hypers}
    expected |= {name: values[0] for name, values in routine.choices.items()}
    expected |= {slot.name: None for slot in routine.slots if slot.optional or not slot.scalar}
    for name, parameter in given.items():
        default = None if parameter.default is parameter.empty else parameter.default
        assert (default, type(default) in (int, float)) == (
            expected.get(name), type(expected.get(name)) in (int, float)), name
    assert set(given) == {*expected, *routine.scalars, *GATE}
    for name, parameter in parameters(getattr(cpu, routine.name)).items():
        if name in expected and parameter.default is not parameter.empty:
            assert parameter.default == expected[name], name


DTYPES = "bfloat16", "float32", "float32", "float32"  # of which a step may round parameters by chance
# What else a step is given, so that a choice or a number counts.
WITH = {"seed": {"rounding": "stochastic"}, "adapt": {"lars_weight_decay": 0.0}, "always_adapt": {"weight_decay": 0.0}}
# Where the last of the choices, or the usual number, changes nothing in this case.
VALUES = {"adapt": "decay", "lars_coeff": 0.3, "lars_weight_decay": 0.3}


def keywords(routine):
    """What a call is given by keyword, beside lists of arrays: numbers and choices, no defaults, and the gate."""
    given = step_of(routine) | {name: values[-1] for name, values in routine.choices.items()}
    gate = {name: np.full(1, value, np.float32) for name, value in GATE.items()}
    return {name: VALUES.get(name, value) for name, value in given.items()} | gate


def outcome(module, routine, one, names):
    """What a step leaves of a case, given so many of the keywords, by the merged function or by the single one."""
    lists = tuple(slot.name for slot in routine.slots if slot.optional)
    case = make(routine, [200] if one else [200, 7], DTYPES, optional=lists)
    put = np.array if module is cpu else gpu.device("executor").to_device
    slots = {name: [put(x) for x in xs] for name, xs in case.slots.items()}
    positional, optional = arguments(routine, slots)
    if one:
        positional, optional = [xs[0] for xs in positional], {name: xs[0] for name, xs in optional.items()}
    given = keywords(routine) | {k: v for name in names for k, v in WITH.get(name, {}).items()} | optional
    given = {name: put(x) if name in GATE else x for name, x in given.items() if name in names}
    if one and "master_params" in given:
        given["master_param"] = given.pop("master_params")
    getattr(module, routine.name if one else routine.merged_name)(*positional, **given)
    return {name: [(x if module is cpu else x.copy_to_host()).tobytes() for x in xs] for name, xs in slots.items()}


@pytest.mark.parametrize(("module", "one"), [
    pytest.param(cpu, False, id="cpu-merged"), pytest.param(cpu, True, id="cpu-single"),
    pytest.param(gpu, False, id="gpu-merged"), pytest.param(gpu, True, id="gpu-single", marks=pytest.mark.slow)])
@routines
def test_every_keyword_counts(routine, module, one):
    """What is left out is at its default, which the case tells from what is given."""
    needed = {hyper.name for hyper in routine.hypers if hyper.default is None}
    optional = {slot.name for slot in routine.slots if slot.optional}
    every = {*keywords(routine), *optional} - {"found_inf", *routine.choices}
    of = cache(partial(outcome, module, routine, one))
    for name in sorted({*keywords(routine), *optional} - needed):
        names = frozenset(every | {name} | WITH.get(name, {}).keys())
        assert of(names) != of(names - {name}), name


@routines
def test_arrays_by_name(routine):
    """The reference takes them so, and the kernel as well."""
    for one in (False, True):
        case = make(routine, [5], DTYPES)
        found = []
        for module, put in ((cpu, np.array), (gpu, gpu.device("executor").to_device)):
            function = getattr(module, routine.name if one else routine.merged_name)
            slots = {name: [put(x) for x in xs or ()] for name, xs in case.slots.items()}
            expected = [x.name for x in parameters(function).values() if x.kind is x.POSITIONAL_OR_KEYWORD]
            positional, _ = arguments(routine, slots)
            named = dict(zip(expected, [xs[0] for xs in positional] if one else positional, strict=True))
            function(**named, **step_of(routine))
            found.append([np.asarray(x if module is cpu else x.copy_to_host()) for xs in slots.values() for x in xs])
        assert [x.tobytes() for x in found[0]] == [x.tobytes() for x in found[1]]


def wrong_calls(routine):
    """Arguments that no function of a routine has, with the one that is given too often or not at all."""
    case = make(routine, [5], DTYPES)
    positional, _ = arguments(routine, case.slots)
    masters, step = case.slots["master_params"], step_of(routine)
    ones = [xs[0] for xs in positional]
    yield routine.name, ones, step | {"master_params": masters}
    yield routine.name, ones, step | {"params": [ones[0]]}
    yield routine.merged_name, positional, step | {"master_param": masters[0]}
    for name, given in ((routine.name, ones), (routine.merged_name, positional)):
        yield name, given, step | {"learning_rate": 0.1}
        yield name, [*given, given[-1]], step
        yield name, given[:-1], step
        yield name, given, step | {"param" if given is ones else "params": given[0]}
        for hyper in routine.hypers:
            if hyper.default is None:
                yield name, given, {key: x for key, x in step.items() if key != hyper.name}


@pytest.mark.parametrize("module", [cpu, gpu], ids=["cpu", "gpu"])
@routines
def test_other_arguments_are_refused(routine, module):
    for name, given, named in wrong_calls(routine):
        arrays = [x for xs in (*given, *named.values()) for x in (xs if isinstance(xs, list) else [xs])]
        arrays = [x for x in arrays if isinstance(x, np.ndarray)]
        if module is gpu:
            there = {id(x): gpu.device("executor").to_device(x) for x in arrays}
            on = lambda x: [on(e) for e in x] if isinstance(x, list) else there.get(id(x), x)  # noqa: E731, B023
            given, named = on(given), {key: on(x) for key, x in named.items()}
        before = [x.tobytes() for x in arrays]
        with pytest.raises(TypeError, match=routine.name):
            getattr(module, name)(*given, **named)
        after = arrays if module is cpu else [there[id(x)].copy_to_host() for x in arrays]
        assert [x.tobytes() for x in after] == before


@pytest.mark.parametrize(("one", "other"),
                         [(cpu.merged_cast, gpu.merged_cast), (cpu.merged_cast, gpu.cast_plan),
                          (cpu.check_gradients, gpu.gradient_check), (cpu.update_loss_scaling, gpu.update_loss_scaling),
                          (cpu.update_loss_scaling, gpu.loss_scaling), (cpu.coalesce_tensor, gpu.coalesce_tensor)])
def test_functions_around_the_step_have_the_signature_of_the_reference(one, other):
    given = [[x for x in parameters(f).values() if x.name != "stream"] for f in (one, other)]
    plain = [[x.replace(annotation=x.empty) for x in xs] for xs in given]
    assert plain[0] == plain[1]
