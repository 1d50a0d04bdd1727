"""Junk in place of each argument of programs, passes, placement, sharding and ranks: refused by name."""

import copy
import math
import pickle

import numpy as np
import pytest
from checks.test_junk import JUNK
from program_cases import started

from refopt import state
from refopt.catalog import ROUTINES
from refopt.comm import local
from refopt.oracle.exact.build import make
from refopt.program import Config, Op, Program, Var, bind, blocks, counts, passes, placement, run, step_program
from refopt.program.mixed_precision import amp_program, copy_of, gradient_of, recomputed_copy_of
from refopt.program.passes import grouping
from refopt.program.program import side_by_side

F = np.float32
PARAMS = [("a.w", (4, 3)), ("b.w", (2,))]
PLAIN, RANKS = (step_program(PARAMS, "adam", lr=0.5, world_size=n) for n in (1, 2))
PLACED = passes.reduce_to_owners(PLAIN, 2).program
ONE = passes.on_device(PLACED, 0)
PLAN = placement.on_streams(ONE)
AMP = amp_program(PARAMS, "adam", lr=0.5, world_size=2)
BLOCKS = blocks.slice_variable([(4, 3)], 2, 2)[0]

MORE = JUNK | {"object": object, "[[1]]": lambda: [[1]], "{x: None}": lambda: {"x": None}, "{1: 1}": lambda: {1: 1},
               "a pair": lambda: [("a", 1)], "too large": lambda: [10**400, 1], "nans": lambda: [math.nan],
               "infs": lambda: [math.inf, 1.0], "single": lambda: np.ones(3, F),
               "subclass": lambda: np.ones(2, F).view(type("Sub", (np.ndarray,), {}))}

# What is no junk, by kind of an argument: all else is refused.
INTEGERS = {"0", "1", "-1", "2**31", "2**64", "10**400", "-10**400", "int8", "int array"}
NUMBERS = INTEGERS | {
    "0.5", "-0.0", "1e39", "1e-60", "inf", "-inf", "Fraction", "float16", "longdouble", "no dimensions"}
NAMES = {"texts", "texts of NumPy"}
ROWS = {"list", "tuple", "range", "set", "dict", "generator", "array", "array of one", "{1: 1}", "single", "empty"}
KINDS = {
    "": set(), "none": {"None"}, "flag": {"True", "np.True_"}, "integer": INTEGERS, "number": NUMBERS,
    "fp32": NUMBERS - {"inf", "-inf", "1e39", "10**400", "-10**400"},
    "name": {"text", "a digit", "no text"}, "names": NAMES | {"{x: None}", "no list", "empty"},
    "empty": {"no list", "empty"}, "mapping": {"{x: None}"},
    "any mapping": {"dict", "{1: 1}", "{x: None}"}, "function": {"type", "function"},
    "integers": {"empty", "too large", "range", "set", "generator", "dict", "{1: 1}", "no list"},
    "integers listed": {"too large", "range", "no list"},
    "numbers": ROWS | {"matrix", "masked", "swapped", "subclass"},
    "names of two": NAMES, "shapes": {"[[1]]", "nested", "no list", "empty"},
    "extents": {"range", "set", "dict", "{1: 1}", "no list", "empty"},
    **{name: {name} for name in ("bools", "infs", "no list", "range", "generator")}, "zero": {"0"},
    "eights": {"2**31", "2**64", "10**400"},
    "per tensor": {"array of one", "single"},  # of the one that the op has
    "small": {"1", "int8", "int array"},  # of ranks, of which there cannot be 2**31
    "array": {"array", "single", "array of one", "empty", "no dimensions", "int array", "bool array"}}


def variables():
    return {name: np.ones(var.shape, F) for name, var in PLAIN.vars.items() if var.persistable and var.initial is None}


def gradients():
    return {f"{name}@GRAD": np.ones(shape, F) for name, shape in PARAMS}


def bound():
    return started(PLAIN, variables(), gradients=gradients())


def stepped(gradient):
    made = started(PLAIN, variables(), gradients=gradients() | {"b.w@GRAD": gradient})
    made.step()


def balancer():
    made = passes.Balancer(2, {"a": 3, "b": 2})
    made.record("a", 1)
    return made


def alone(method, **arguments):
    """A call of a rank that is alone."""
    return local.run(lambda world: getattr(world, method.partition(" ")[0])(**arguments), 1)


def grouped(**fields):
    given = {"groups": ((0, 1),), "buffers": ((0,),), "name": "a{}"} | fields
    return passes.coalesce_gradients(RANKS, lambda *_: grouping.Grouping(**given))


def do_nothing(world):
    """What a rank may do."""


def slots():
    return {name: xs for name, xs in make(ROUTINES["adam"], [3, 3]).slots.items() if name != "grads"}


TENSORS = {"names": (["a.w", "b.w"], "names"), "shapes": ([(4, 3), (2,)], "shapes"),
           "dtypes": (["float32", "float32"], "")}
STEP = {"world_size": (2, "small"), "early": (False, "flag")}
BIND = {"program": (PLAIN, ""), "arrays": (variables, ""), "backend": ("cpu", ""), "comm": (None, "none"),
        "gradients": (gradients, "none|any mapping|function"), "stream": (0, "none|zero")}

# By the name that errors begin with: a function, and by argument a value, or what makes one, and its kinds.
CALLS = {
    "Var": (Var, {"name": ("a", "name"), "shape": ((2,), "extents|integers|generator"), "dtype": ("float32", ""),
                  "persistable": (True, "flag"), "sparse": (True, "flag"), "initial": (1.0, "none|number|name")}),
    "Op": (Op, {"type": ("scale", "name"), "inputs": ({"x": ("a",)}, ""), "outputs": ({"out": ("a",)}, ""),
                "attrs": ({"scale": 1.0}, "mapping"), "role": ("forward", ""), "layer": ("l", "none|name"),
                "device": (0, "none|integer")}),
    "Program": (Program, {"vars": ({"a": Var("a", (2,), "float32")}, ""), "startup": ((), "empty"),
                          "main": ((), "empty")}),
    "program: new": (PLAIN.with_vars, {"new": ([Var("new", (2,), "float32")], "empty")}),
    "counts": (PLAIN.counts, {"by": ("type", ""), "part": ("main", "")}),
    "memory": (PLAIN.memory, {"name": ("a.w", "name")}),
    "listing": (PLAIN.listing, {"width": (100, ""), "fold": (True, "flag")}),
    "side_by_side": (side_by_side, {"before": (PLAIN, ""), "after": (PLAIN, ""), "width": (100, "")}),
    "step_program|program: main": (step_program, {
        "params": (PARAMS, "empty"), "optimizer": ("adam", ""), "config": ("fp32", ""), **STEP,
        "grad_dtype": ("float32", "none"), "state_dtype": ("float32", "none"), "optional": ((), "empty"),
        "sparse": ((), "empty"), "layer": (str, "none|function"), "lr": (0.5, "number")}),
    "step_program: config": (lambda **x: step_program(PARAMS, "adam", config=Config(**x), lr=0.5), {
        "param": ("float32", ""), "grad": ("float32", ""), "state": ("float32", ""), "master": (None, "none")}),
    "bind": (bind, BIND), "run|bind|backward|step|merged_adam": (run, BIND | {
        "steps": (1, "integer"), "lr": (0.5, "number|per tensor")}),
    "bind: arrays": (lambda array: bind(PLAIN, variables() | {"b.w": array}), {"array": (lambda: np.ones(2, F), "")}),
    "backward": (stepped, {"gradient": (lambda: np.ones(2, F), "")}),
    "step|merged_adam": (lambda **x: bound().step(**x), {
        "lr": (0.5, "number|per tensor"), "beta1": (0.5, "number|per tensor")}),
    "rebind": (lambda **x: bound().rebind(**x), {"arrays": (variables, "")}),
    "rebind: arrays": (lambda array: bound().rebind({"b.w": array}), {"array": (lambda: np.ones(2, F), "")}),
    "Bound.read": (lambda **x: bound().read(**x), {"name": ("a.w", "")}),
    "Bound.gradient": (lambda **x: bound().gradient(**x), {"name": ("a.w@GRAD", "")}),
    "Bound.put": (lambda **x: bound().put(**x), {"name": ("b.w", ""), "array": (lambda: np.ones(2, F), "")}),
    "Bound.drop": (lambda **x: bound().drop(**x), {"names": (["a.w"], "empty")}),
    "Result": (passes.Result, {"program": (PLAIN, ""), "applied": (True, "flag"), "reasons": ((), "names")}),
    "Report": (passes.Report, {"program": (PLAIN, ""), "applied": (True, "flag"), "reasons": ((), "names"),
                               "before": (PLAIN, ""), "steps": ((("a", passes.Result(PLAIN, True)),), "empty")}),
    "coalesce_gradients|later": (passes.coalesce_gradients, {
        "program": (RANKS, ""), "grouping": ("later", "function"), "memory_size": (1.0, "number"),
        "groups_size": (1, "integer")}),
    "coalesce_gradients: grouping|Var: name": (grouped, {
        "groups": (((0, 1),), ""), "buffers": (((0,),), "empty"), "name": ("a{}", "name")}),
    "fold_averages": (passes.fold_averages, {"program": (RANKS, ""), "exact": (True, "flag")}),
    "fuse_all_reduce": (passes.fuse_all_reduce, {"program": (RANKS, "")}),
    "local_steps": (passes.local_steps, {"program": (RANKS, ""), "every": (2, "integer")}),
    "update_rows": (passes.update_rows, {"program": (RANKS, ""), "count": ("row", "")}),
    "narrow_sums": (passes.narrow_sums, {"program": (RANKS, ""), "dtype": ("float16", ""), "average": ("before", "")}),
    "fuse_optimizer": (passes.fuse_optimizer, {
        "program": (RANKS, ""), "optimizer": ("all", ""), "form": ("auto", ""), "per_buffer": (True, "flag")}),
    "pipeline": (lambda program, passes_: passes.pipeline(program, passes_), {
        "program": (RANKS, ""), "passes_": (passes.fuse_all_reduce, "function")}),
    "early": (grouping.early, TENSORS | {"memory_size": (0, "number"), "groups_size": (3, "integer")}),
    "later": (grouping.later, TENSORS | {"memory_size": (0, "number"), "groups_size": (3, "integer")}),
    "fuse_size": (grouping.fuse_size, TENSORS | {"limit": (1.0, "number")}),
    "by_count": (grouping.by_count, TENSORS | {"count": (1, "integer")}),
    "ddp": (grouping.ddp, TENSORS | {"bucket_cap_mb": (1.0, "number"), "first_bucket_mb": (1.0, "number")}),
    "Balancer": (passes.Balancer, {"devices": (2, "small"), "sizes": ({"a": 1}, ""), "unknown": ("error", "")}),
    "get_appropriate_dev": (lambda **x: balancer().get_appropriate_dev(**x), {"names": (["a"], "names of two")}),
    "record": (lambda **x: balancer().record(**x), {"name": ("a", "name"), "device": (1, "integer")}),
    "place|get_appropriate_dev": (lambda **x: balancer().place(**x), {"name": ("a", "")}),
    "take": (lambda **x: balancer().take(**x), {"other": (balancer, "")}),
    "device_of": (lambda **x: balancer().device_of(**x), {"name": ("a", "")}),
    "sizes_of": (passes.sizes_of, {"vars": (PLAIN.vars, "")}),
    "slice_variable": (blocks.slice_variable, {
        "shapes": ([(4, 3)], "shapes"), "slice_count": (2, "integer"), "min_block_size": (2, "integer")}),
    "split_by_ref: blocks": (lambda **x: blocks.split_by_ref(np.ones(1), [blocks.Block(**x)]), {
        "number": (0, "integer"), "first": (0, "integer"), "size": (1, "integer")}),
    "text: name": (BLOCKS[0].text, {"name": ("w", "name")}),
    "split_by_ref": (blocks.split_by_ref, {"array": (lambda: np.ones((4, 3), F), ""), "blocks": (list(BLOCKS), "")}),
    "concat": (blocks.concat, {"parts": (lambda: [np.ones((2, 3), F)] * 2, ""),
                               "target": (lambda: np.ones((4, 3), F), ""), "stream": (0, "none|zero")}),
    "concat: parts": (lambda part: blocks.concat([part, np.ones((2, 3), F)], np.ones((4, 3), F)), {
        "part": (lambda: np.ones((2, 3), F), "")}),
    "broadcast_params": (lambda **x: local.run(lambda world: placement.broadcast_params(world, **x), 1), {
        "arrays": (variables, ""), "owners": (dict.fromkeys(variables(), 0), "none")}),
    "all_reduce": (passes.all_reduce_gradients, {"program": (PLAIN, ""), "devices": (2, "small")}),
    "reduce": (passes.reduce_to_owners, {"program": (PLAIN, ""), "devices": (2, "small")}),
    "offload": (passes.offload, {
        "program": (ONE, ""), "nbytes": (2, "none|integer"), "ring": (3, "integer"), "masters": (True, "flag")}),
    "on_device": (passes.on_device, {"program": (PLACED, ""), "device": (0, "integer")}),
    "owners": (passes.owners, {"program": (PLACED, "")}),
    "send_to_owners": (passes.send_to_owners, {
        "program": (PLAIN, ""), "devices": (2, "small"), "strategy": ("reduce", ""), "slice_count": (2, "none|integer"),
        "min_block_size": (1, "integer"), "receiver": ("gradient", "")}),
    "on_streams": (placement.on_streams, {"program": (ONE, ""), "streams": ({"compute": "compute"}, "none")}),
    "Schedule": (placement.Schedule, {"program": (ONE, ""), "tasks": (PLAN.tasks, "empty")}),
    "label": (PLAN.label, {"task": (PLAN.tasks[1], "")}),
    "order": (PLAN.order, {"seed": (1, "integer")}),
    "Task": (placement.Task, {
        "number": (7, "integer"), "kind": ("run", ""), "stream": ("compute", ""), "op": (0, "integer"),
        "names": ((), "names"), "reads": ((), "names"), "writes": ((), "names"), "waits": ((), "integers|empty")}),
    "conflicts": (PLAN.tasks[1].conflicts, {"other": (PLAN.tasks[2], "")}),
    "amp_program|step_program|program: main": (amp_program, {
        "params": (PARAMS, "empty"), "optimizer": ("adam", ""), "world_size": (2, "small"),
        "accumulate": (2, "small"), "recompute": (True, "flag"), "fp32": ((), "empty"),
        "max_norm": (1.0, "none|number"),
        "clip_epsilon": (1.0, "fp32"), "loss_scale": (2.0, "fp32"), "scaling": ({}, "none"),
        "layer": (str, "none|function"), "optional": ((), "empty"), "lr": (0.5, "number")}),
    **{name: (getattr(passes, name), {"program": (AMP, "")})
       for name in ("batch_owners", "eligible", "fold_casts", "optimize_cast")},
    "copy_of": (copy_of, {"param": ("a", "name")}),
    "recomputed_copy_of": (recomputed_copy_of, {"param": ("a", "name"), "number": (0, "integer")}),
    "gradient_of": (gradient_of, {"param": ("a", "name"), "micro": (0, "integer"), "fp32": (True, "flag")}),
    "fuse_broadcasts": (passes.fuse_broadcasts, {"program": (AMP, ""), "limit": (1.0, "number")}),
    "fuse_reduces": (passes.fuse_reduces, {"program": (AMP, ""), "limit": (1.0, "number")}),
    "partition": (passes.partition, {"sizes": ([1, 2], "integers"), "ranks": (2, "integer"), "rule": ("paddle", "")}),
    "shard": (passes.shard, {"program": (AMP, ""), "rank": (0, "integer"), "degree": (2, ""), "rule": ("paddle", ""),
                             "order": ("program", "")}),
    "param_casts": (counts.param_casts, {"program": (AMP, "")}),
    "kept": (counts.kept, {"program": (AMP, "")}),
    "communicated": (counts.communicated, {
        "program": (AMP, ""), "chunk": (8, "none|eights"), "steps": (1, "integer")}),
    "local.run": (local.run, {"function": (do_nothing, "function"), "size": (2, "small"), "schedule": ("forward", ""),
                              "seed": (0, "integer"), "algorithm": ("rank_order", "")}),
    **{method: (lambda method=method, **x: alone(method, **x), {
        name: (0, "integer") if name == "root" else (lambda: np.ones(2, F), "array") for name in names})
       for method, names in {
           "all_reduce of a rank": ["array"], "reduce of a rank": ["array", "root"],
           "broadcast of a rank": ["array", "root"], "reduce_scatter of a rank": ["source", "target"],
           "all_gather of a rank": ["source", "target"]}.items()},
    "group": (lambda **x: alone("group", **x), {"ranks": ([0], "")}),
    "agree": (lambda **x: alone("agree", **x), {"description": (["a"], "names")}),
    "state_dict|merged_adam": (state.state_dict, {
        "routine": ("adam", ""), "slots": (slots, ""), "hypers": ({}, "none")})}
# Whose errors may name another argument, which then does not fit, or none, where the function says it all.
NAMELESS = {"Op", "backward", "Bound.read", "Bound.gradient", "Bound.put", "Bound.drop", "take", "device_of",
            "coalesce_gradients: grouping|Var: name", "split_by_ref", "split_by_ref: blocks", "concat",
            "state_dict|merged_adam"}
ENDLESS = {(run, "steps", junk) for junk in ("2**31", "2**64", "10**400")}


def value_of(given):
    makes = callable(given) and getattr(given, "__module__", "") == __name__ and given is not do_nothing
    value = given() if makes else given
    return copy.copy(value) if isinstance(value, dict | list) else value


@pytest.mark.parametrize("name", CALLS)
def test_junk(name):
    function, arguments = CALLS[name]
    known = tuple(part.partition(" of ")[0] for part in name.split("|"))
    call = {key: value for key, (value, _) in arguments.items()}
    for argument, (_, kinds) in arguments.items():
        taken = set().union(*(KINDS[kind] for kind in kinds.split("|")))
        for junk, made in MORE.items():
            if (function, argument, junk) in ENDLESS:
                continue
            given = {key: value_of(value) for key, value in call.items()} | {argument: made()}
            try:
                function(**given)
            except (TypeError, ValueError) as error:
                text, own = str(error), kinds and "function" in kinds and junk in KINDS["function"]
                named = name in NAMELESS or argument.removesuffix("_") in text
                assert own or (text.startswith(known) and " expected " in text and named), (argument, junk, repr(error))
            else:
                assert junk in taken, f"{argument}: {junk} is taken"


# The least that an argument may be, if it is a number: 0, but for these.
LEAST = dict.fromkeys([
    "world_size", "groups_size", "devices", "slice_count", "min_block_size", "local.run: size", "offload: nbytes",
    "by_count: count", "ring", "accumulate", "ranks", "degree", "every", "communicated: steps"], 1)
LEAST |= {"early: groups_size": -1, "Task: op": -1}
ABOVE_0 = {"loss_scale"}
ANY = {"Var: initial", "order: seed", "coalesce_gradients|later: memory_size", "later: memory_size"}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_below_the_least(name):
    function, arguments = CALLS[name]
    for argument, (_, kinds) in arguments.items():
        where = f"{name}: {argument}"
        if {"integer", "small", "number", "fp32"}.isdisjoint(kinds.split("|")) or where in ANY:
            continue
        below = 0 if argument in ABOVE_0 else LEAST.get(where, LEAST.get(argument, 0)) - 1
        with pytest.raises(ValueError, match=rf"{argument}.* got {below}\b"):
            function(**{key: below if key == argument else value_of(value) for key, (value, _) in arguments.items()})


@pytest.mark.parametrize(("name", "least"), [("listing", 20), ("side_by_side", 20)])
def test_widths(name, least):
    function, arguments = CALLS[name]
    call = {key: value_of(value) for key, (value, _) in arguments.items()}
    for width in (least, 10_000):
        assert max(map(len, function(**call | {"width": width}).splitlines())) <= width
    for width in (least - 1, 10_001):
        with pytest.raises(ValueError, match=f"^{name}: width: expected an integer from {least} to 10000, got {width}"):
            function(**call | {"width": width})


def test_integers_that_python_does_not_write_out():
    with pytest.raises(ValueError, match="Balancer: devices: expected an integer from 1 to 1048576, got int of many"):
        passes.Balancer(10**5000, {})


@pytest.mark.parametrize("change", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_a_balancer_has_its_own_loads(change):
    first = balancer()
    first.place("b")
    made = change(first)
    assert (made.devices, made.loads, made.places) == (2, (2, 0), {"a": 1, "b": 0})
    assert made.get_appropriate_dev(["a", "b"]) == 1 and made.record("c", 1) == 1
    assert (first.loads, first.places) == ((2, 0), {"a": 1, "b": 0})
