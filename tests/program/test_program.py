"""Programs: the usual step, what it looks like in print, and what makes no sense."""

import math
import re

import numpy as np
import pytest
from program_cases import PARAMS, adam, everything

from refopt.catalog import workloads
from refopt.program import UNKNOWN, Op, Program, Var, passes, side_by_side, step_program

RESNET = step_program(workloads.load("resnet50").tensors, "adam", lr=0.1, world_size=8, early=True)

# What a step looks like.


def test_a_step_in_order():
    """Gradients from the last parameter to the first, each averaged; then the updates; then the powers."""
    program = adam(PARAMS[:2], world_size=4, early=True)
    assert [(op.type, op.role, op.writes[0]) for op in program.main] == [
        ("backward", "backward", "a.b@GRAD"), ("all_reduce", "communicate", "a.b@GRAD"),
        ("scale", "communicate", "a.b@GRAD"),
        ("backward", "backward", "a.w@GRAD"), ("all_reduce", "communicate", "a.w@GRAD"),
        ("scale", "communicate", "a.w@GRAD"),
        ("adam", "optimize", "a.w"), ("adam", "optimize", "a.b"),
        ("scale", "optimize", "a.w_beta1_pow_acc_0"), ("scale", "optimize", "a.w_beta2_pow_acc_0"),
        ("scale", "optimize", "a.b_beta1_pow_acc_0"), ("scale", "optimize", "a.b_beta2_pow_acc_0")]
    assert [op.attrs["scale"] for op in program.main if op.type == "scale"] == [0.25, 0.25, 0.7, 0.8, 0.7, 0.8]
    assert program.counts("layer") == {"a": 12} and program.counts("device") == {None: 12}
    assert program.counts("layer", "startup") == {"a": 2} and program.counts(part="startup") == {"broadcast": 2}
    assert program.counts("role") == {"backward": 2, "communicate": 4, "optimize": 6}
    assert adam(PARAMS[:2], layer=lambda name: name[2:]).counts("layer") == {"b": 2, "w": 2}


def test_variables_of_a_step():
    program = adam(PARAMS[:1], config="amp", lr=np.float32(0.5))
    assert {type(value) for value in program.main[-1].attrs.values()} <= {float, int, str, bool}
    assert [(var.name, var.dtype, var.persistable, var.initial) for var in program.vars.values()] == [
        ("a.w", "float16", True, None), ("a.w@GRAD", "float16", False, None), ("a.w_moment1_0", "float32", True, 0.0),
        ("a.w_moment2_0", "float32", True, 0.0), ("a.w_beta1_pow_acc_0", "float32", True, 0.7),
        ("a.w_beta2_pow_acc_0", "float32", True, 0.8), ("a.w_fp32_master_0", "float32", True, "a.w")]


@pytest.mark.parametrize(("options", "error", "message"), [
    (dict(optimizer="x"), ValueError, "optimizer: expected one of sgd, .*, got 'x'"),
    (dict(optimizer={"a.w": "sgd"}), ValueError, "optimizer: expected an entry for every parameter, got none for"),
    (dict(config="fp8"), ValueError, "config: expected one of fp32, fp64, amp, bf16 or a Config, got 'fp8'"),
    (dict(sparse=[*"zyxw"]), ValueError, "sparse: expected names of params, got 'w'"),
    (dict(optional=[*"zyxw"]), ValueError, "optional: expected some of none, got 'w'"),
    (dict(params=[("a", (1,)), ("a", (2,))]), ValueError, "params: expected each name once"),
    (dict(rounding="up"), ValueError, "step_program: rounding: expected one of nearest, stochastic, got 'up'"),
    (dict.fromkeys(["z", "y", "mu"], 0.5), TypeError, "mu: expected one of l2_decay, lr, maximize, rescale_grad, rou"),
    (dict(optimizer="nadam", early=True), ValueError, "early: expected scalars that are powers of beta, got mom"),
    (dict(params=[("a", (2.7,))]), TypeError, r"step_program: params: 'a': shape\[0\]: expected an integer, got 2.7"),
    (dict(params=[("a", (2**60,))]), ValueError, r"params: 'a': shape: expected at most 2\*\*63 - 1 bytes, got \(1"),
    (dict(params=[("a", (-1,))]), ValueError, r"params: 'a': shape: expected extents of at least 0, got \(-1,\)"),
    (dict(params=[], optimizer="x"), ValueError, "optimizer: expected one of sgd, .*, got 'x'"),
    (dict(lr=[0.5, 0.5]), TypeError, "lr: expected one value, or a mapping that has one for each parameter, got "),
    (dict(lr=-1.0), ValueError, r"main\[2\] sgd: merged_sgd: lr: expected a finite float32 at least 0, got -1.0"),
    (dict(state_dtype="8bit"), ValueError, "step_program: state_dtype: expected one of float16, .*, got '8bit'"),
    *((dict(optimizer=name, state_dtype="uint8", config=config), TypeError, rf"0\]: expected {dtypes}, got uint8")
      for name, config, dtypes in (("lamb", "fp32", "float32 or bfloat16"), ("adam", "fp64", "float64"))),
    (dict(grad_dtype="float64"), TypeError, r"main\[2\] sgd: merged_sgd: grads\[0\]: expected a dtype that widens to"),
])
def test_bad_arguments_of_a_step(options, error, message):
    given = dict(params=PARAMS[:2], optimizer="sgd", lr=0.5) | options
    with pytest.raises(error, match=message):
        step_program(**given)


@pytest.mark.parametrize(("names", "got"), [
    (["w", "w_moment1_0"], "w_moment1_0"), (["w_beta1_pow_acc_0", "w"], "w_beta1_pow_acc_0"),
    (["w", "w@GRAD"], "w@GRAD"), (["w", "w@GRAD@DENSE"], "w@GRAD@DENSE"), (["w", "w@GRAD@GATHERED"], "w@GRAD@GATHERED"),
    (["n", "n_second"], "n_second_moment_0")])
def test_names_that_collide(names, got):
    """A parameter like what the program makes for another one, or two parameters for which it makes the same."""
    params = [(name, (2,)) for name in names]
    optimizer = {name: "adagrad" if name == "n_second" else "novograd" if name == "n" else "adam" for name in names}
    options = dict(sparse=["w"], world_size=2) if "w" in names else {}
    expected = "step_program: params: expected names that are unique in the program, got"
    with pytest.raises(ValueError, match=f"^{expected} '{got}'$"):
        step_program(params, optimizer, lr=0.1, **options)


def test_ops_and_programs_do_not_change():
    program = adam(PARAMS[:1])
    for change in (lambda: setattr(program, "main", ()), lambda: program.vars.update({}),
                   lambda: setattr(program.main[0], "role", ""), lambda: program.main[0].attrs.update({}),
                   lambda: program.main[0].inputs.clear()):
        with pytest.raises(AttributeError):
            change()
    assert program.replace() == program and hash(program.replace()) == hash(program)
    assert program.main[0].replace(layer="x") != program.main[0]


# Listings.


def test_listing_is_complete_and_narrow():
    lines = str(RESNET).splitlines()
    lines = lines[161:]  # of broadcasts at startup
    assert len(lines) == 2 + 161 * 6 and max(map(len, lines)) <= 100
    assert str(RESNET).splitlines()[0] == "startup: 161 broadcast"
    assert lines[1] == "main: 161 backward, 161 all_reduce, 483 scale, 161 adam"
    assert lines[2] == "    0  backward         fc.bias@GRAD  <- fc.bias"
    assert lines[3] == "    1  all_reduce       fc.bias@GRAD  ranks=8"
    assert lines[4] == "    2  scale            fc.bias@GRAD  scale=0.125"
    assert lines[485] == "  483  adam             conv1.weight  <- conv1.weight@GRAD  lr=0.1"
    assert max(map(len, RESNET.listing(width=40).splitlines())) <= 40


LAYOUT = {"copy_data": False, "use_align": True, "align_size": -1}


@pytest.mark.parametrize(("op", "line"), [
    (Op("sum", {"x": ["g", "h"], "out": ["t", "u"]}, {"out": ["t", "u"]}), "sum              t  <- g, h"),
    (Op("cast", {"x": ["a", "b", "c"]}, {"out": ["A", "B", "C"]}), "cast             A ... C (3)  <- a ... c (3)"),
    (Op("scale", {"x": ["a"]}, {"out": ["a"]}, {"scale": 0.123456789}), "scale            a  scale=0.123457"),
    (Op("coalesce_tensor", {"input": ["a"]}, {"output": ["a"], "fused_output": ["f"]}, {**LAYOUT, "groups": (1,)}),
     "coalesce_tensor  f  <- a"),
    (Op("coalesce_tensor", {"input": ["a"]}, {"output": ["a"], "fused_output": ["f"]},
        {"copy_data": True, "use_align": False, "parts": 2}),
     "coalesce_tensor  f  <- a  copy_data=True use_align=False parts=2"),
    (Op("batch", {"x": ["a", "b"]}, {"out": ["a", "b"]}, {"kind": "reduce", "roots": (0, 1), "counts": [1, 1]}),
     "batch            a, b  kind=reduce roots=[0, 1] counts=[1, 1]"),
    (Op("check_gradients", {"x": ["g"]}, {"sums": ["s"], "odd": ["o"]}, {"positions": (3, 2, 0)}),
     "check_gradients  s, o  <- g  positions=[3 ... 0 (3)]"),
    (Op("scale", {"x": ["a"]}, {"out": ["a"]}, {"scale": -1.0}), "scale            a  scale=-1"),
    (Op("broadcast", {"x": ["w"]}, {"out": ["w"]}, {"ranks": 2, "root": 0}), "broadcast        w  ranks=2 root=0"),
    (Op("send", {"x": ["a"]}, {}, {"to": 1}, device=0), "send             <- a  to=1  @0"),
    (Op("merged_sgd", {"params": ["a"], "grads": ["g"]}, {"params": ["a"]}, {"lr": (0.5, 1 / 3), "maximize": False}),
     "merged_sgd       a  <- g  lr=[0.5, 0.333333]")])
def test_lines(op, line):
    """What an op makes of what, and its attributes that are not at their defaults."""
    text = Program({}, (), [op])
    assert str(text).splitlines()[2:] == [f"    0  {line}"]
    full = len(line) + 7
    assert [text.listing(width=width).splitlines()[2] for width in (full, full - 1)] == [
        f"    0  {line}", f"    0  {line}"[: full - 4] + "..."]


def test_listing_folds_runs():
    lines = str(RESNET).splitlines()
    assert RESNET.listing(fold=True).splitlines() == [
        *lines[:3], "     ... 159 more broadcast", "main: 161 backward, 161 all_reduce, 483 scale, 161 adam",
        *lines[163:169], "     ... 159 more of backward all_reduce scale",
        *lines[646:648], "     ... 159 more adam", *lines[807:809], "     ... 320 more scale"]
    assert adam(PARAMS[:3]).listing(fold=True) == str(adam(PARAMS[:3]))
    assert "... 2 more of backward all_reduce scale" in adam(PARAMS[:4], world_size=2, early=True).listing(fold=True)


@pytest.mark.parametrize(("kinds", "shown"), [
    ("a" * 5, "aaaaa"), ("a" * 6, "aa+4 a"), ("ab" * 3, "ababab"), ("ab" * 4, "abab+2 ab"), ("aaab" * 3, "aaab" * 3),
    ("aaab" * 4, "aaabaaab+2 aaab"), ("abcde" * 4, "abcde" * 4), ("b" + "a" * 7 + "bcaa", "baa+5 abcaa"),
    ("abc" * 5 + "ab", "abcabc+3 abcab"), ("a" * 6 + "ab" * 4, "aa+5 a" + "bababab")])
def test_rounds_that_are_folded(kinds, shown):
    """What comes at least four times, in six ops or more, of up to four ops: the shortest round there is."""
    types = dict(zip("abcde", ("scale", "sum", "cast", "backward", "all_reduce"), strict=True))
    ops = tuple(Op(types[kind], {"x": ("x",)}, {"out": ("x",)}, {}) for kind in kinds)
    text = ""
    for words in map(str.split, Program({}, (), ops).listing(fold=True).splitlines()[2:]):
        text += f"+{words[1]} " if words[0] == "..." else ""
        text += "".join(kind for word in words for kind, name in types.items() if word == name)
    assert text == shown


def test_side_by_side():
    made = everything(memory_size=0)(RESNET).program
    lines = side_by_side(RESNET, made).splitlines()
    assert max(map(len, lines)) <= 120 and all(" | " in line or line.endswith(" |") for line in lines)
    left, right = ([f"{line} ".split(" | ")[k].strip() for line in lines] for k in (0, 1))
    assert left[0] == "startup: 161 broadcast" and right[0] == "startup: 161 broadcast, 6 coalesce_tensor"
    assert "... 4 more coalesce_tensor" in right
    assert "main: 161 backward, 1 all_reduce, 3 scale, 1 adam" in right
    assert "... 159 more adam" in left and "... 159 more backward" in right
    assert max(map(len, side_by_side(RESNET, made, width=80).splitlines())) <= 80


# Programs that make no sense.


def edited(program, k, **changes):
    main = list(program.main)
    main[k] = main[k].replace(**changes)
    return program.replace(main=main)


TWO = adam(PARAMS[:2], world_size=2, early=True)
ADAM = 6


def slots(k, side, **changes):
    return edited(TWO, k, **{side: {**getattr(TWO.main[k], side), **changes}})


@pytest.mark.parametrize(("program", "error", "message"), [
    (TWO.replace(main=TWO.main[1:]), ValueError,
     "main[0] all_reduce: 'a.b@GRAD': expected a variable that is persistable or made before"),
    (slots(1, "inputs", x=["x"]), ValueError, "main[1] all_reduce: x[0]: expected a variable of the program, got 'x'"),
    (slots(1, "outputs", out=["a.w"]), ValueError, "main[1] all_reduce: out: expected the variables of x, got a.w"),
    (edited(TWO, 1, attrs={}), TypeError, "main[1] all_reduce: ranks: expected an integer from 1 to 1048576, got None"),
    (edited(TWO, 1, type="broadcast"), TypeError, "main[1] broadcast: root: expected an integer from 0 to 1, got None"),
    (edited(TWO, 2, attrs={"scale": float("nan")}), ValueError, "scale: scale: expected a finite number, got nan"),
    (slots(0, "outputs", grads=["a.w@GRAD"]), ValueError,
     "main[0] backward: grads[0] 'a.w@GRAD': expected shape (7,), as 'a.b' has, got (5, 3)"),
    (slots(ADAM, "inputs", moment1=["a.b_moment1_0"]), ValueError, "main[6] adam: outputs: expected"),
    (edited(TWO, ADAM, inputs={**TWO.main[ADAM].inputs, "moment1": ["a.b_moment1_0"]},
            outputs={**TWO.main[ADAM].outputs, "moment1": ["a.b_moment1_0"]}), ValueError,
     "main[6] adam: merged_adam: moment1[0]: expected shape (5, 3), as params[0] has, got (7,)"),
    (slots(ADAM, "inputs", params=["a.w", "a.b"]), ValueError, "params: expected one variable, got 2; merged_adam"),
    (slots(ADAM, "inputs", velocity=["a.w"]), TypeError, "main[6] adam: velocity: expected one of params, grads, mo"),
    (edited(TWO, ADAM, attrs={**TWO.main[ADAM].attrs, "mu": 1.0}), TypeError, "merged_adam: mu: expected one of lr"),
    (edited(TWO, 2, type="coalesce_tensor"), ValueError, "main[2] coalesce_tensor: expected it in startup"),
    (edited(TWO, 2, type="cast", outputs={"out": ["a.w"]}), ValueError,
     "main[2] cast: out[0] 'a.w': expected shape (7,), as 'a.b@GRAD' has, got (5, 3)"),
    (TWO.replace(vars={**TWO.vars, "a.w": TWO.vars["a.b"]}), ValueError, "vars: expected 'a.b' under its name, got it"),
    (TWO.with_vars([Var("y", (1,), "float32", initial="z")]), ValueError, "'y': initial: expected a variable of the"),
])
def test_check_says_what_is_wrong(program, error, message):
    with pytest.raises(error, match=re.escape(message)):
        program.check()
    TWO.check()


def coalesced(layout, **changes):
    """A buffer of two tensors, of another layout or of other variables."""
    vars = [Var("a", (2,), "float32", True), Var("b", (3,), "float32", True), Var("none", (0,), "float32", True),
            Var("half", (2,), "float16", True), Var("f", UNKNOWN, "float32", True)]
    names = changes.get("names", ["a", "b"])
    slots = {"input": names}, {"output": changes.get("output", names), "fused_output": [changes.get("buffer", "f")]}
    op = Op("coalesce_tensor", *slots, {"copy_data": True, **layout}, role="startup")
    return Program({var.name: var for var in vars}, [op])


@pytest.mark.parametrize(("program", "error", "message"), [
    (coalesced({}, buffer="a"), ValueError, r"fused_output: expected one variable of shape \(-1,\), got a"),
    (coalesced({}, names=["a", "none"]), ValueError, r"output\[1\]: expected at least one element, got 'none' of"),
    (coalesced({}, names=["a", "half"]), TypeError, r"output\[1\]: expected float32, as 'f' has, got float16"),
    (coalesced({}, output=["b", "a"]), ValueError, r"output\[0\] 'b': expected shape \(2,\), as 'a' has, got \(3,\)"),
    (coalesced({}, names=["half", "b"], output=["a", "b"]), TypeError,
     r"output\[0\] 'a': expected float16, as 'half' has, got float32"),
    (coalesced({"copy_data": 1}), TypeError, "copy_data: expected True or False, got 1"),
    (coalesced({"use_align": None}), TypeError, "use_align: expected True or False, got None"),
    *((coalesced({key: 0}), ValueError, f"{key}: expected -1 or an integer of at least 1, got 0")
      for key in ("align_size", "size_of_dtype")),
    (coalesced({"align_size": -2}), ValueError, "align_size: expected an integer of at least -1, got -2"),
    (coalesced({"parts": 0}), ValueError, "parts: expected an integer of at least 1, got 0"),
    (coalesced({"groups": (1,)}), ValueError, "groups: expected counts that add up to 2, got 1"),
    (coalesced({"groups": (2, 0)}), ValueError, r"groups\[1\]: expected an integer of at least 1, got 0")])
def test_buffers_that_are_none(program, error, message):
    with pytest.raises(error, match=rf"^program: startup\[0\] coalesce_tensor: {message}"):
        program.check()
    coalesced({"align_size": -1, "size_of_dtype": 1, "groups": (1, 1), "parts": 1, "use_align": False}).check()


def test_what_is_in_memory_is_not_yet_made():
    """A gradient that lies in a buffer since startup is nothing before the backward pass; nor is the buffer."""
    made = everything(memory_size=0)(adam(PARAMS[:2], world_size=2)).program
    with pytest.raises(ValueError, match=r"'a.b@GRAD': expected a variable that is persistable or made before"):
        made.replace(main=made.main[2:]).check()
    with pytest.raises(ValueError,
                       match=r"'@FUSEDVAR@@GRAD@a.b@GRAD': expected .* before, of which 'a.w@GRAD' is part,"):
        made.replace(main=[op for op in made.main if "a.w@GRAD" not in op.writes]).check()


def test_a_variable_lies_in_one_buffer():
    made = passes.fuse_optimizer(adam(PARAMS[:2])).program
    first = made.startup[0]
    again = first.replace(outputs={**first.outputs, "fused_output": ["again"]})
    both = made.with_vars([Var("again", (-1,), "float32")]).replace(startup=(*made.startup, again))
    with pytest.raises(ValueError,
                       match=r"startup\[6\] coalesce_tensor: 'a.b': expected each variable in one buffer, got"):
        both.check()


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("part", ["startup", "main"])
def test_what_is_no_op_is_named_by_its_place(part, before):
    op = Op("scale", {"x": ["a"]}, {"out": ["a"]}, {"scale": 1.0})
    with pytest.raises(TypeError, match=rf"^Program: {part}\[{before}\]: expected an Op, got 5$"):
        Program({}, **{"startup": (), "main": ()} | {part: (op,) * before + (5,)})


WHOLE = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("dtype", ["bool", *WHOLE])
def test_what_a_variable_of_integers_can_start_from(dtype):
    """The least and the largest number of the dtype and what is between, no other."""
    least, most = (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for value in (least, 0, 1, most):
        assert Var("x", (2,), dtype, initial=value).initial == value
    for value in (least - 1, most + 1, 0.5):
        with pytest.raises((TypeError, ValueError), match="initial: expected"):
            Var("x", (2,), dtype, initial=value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_a_variable_of_floats_can_start_from(dtype):
    """What rounds to a finite number of the dtype, and infinity."""
    beyond = {"float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119, "float32": 2.0**128 - 2.0**103}.get(dtype, math.inf)
    most = math.nextafter(beyond, 0)
    for value in (most, -most, math.inf, 0.1, -0.0):
        assert Var("x", (2,), dtype, initial=value).initial == value
    assert type(Var("x", (2,), dtype, initial=0).initial) is float
    for value in (math.nan, *([beyond, -beyond] if dtype != "float64" else [10**400])):
        with pytest.raises(ValueError, match="initial: expected"):
            Var("x", (2,), dtype, initial=value)


@pytest.mark.parametrize(("x_sparse", "y_sparse"), [(False, False), (True, True), (False, True)])
def test_scatter_adds_are_of_a_sparse_variable_into_a_dense_one(x_sparse, y_sparse):
    vars = [Var("x", (3, 2), "float32", sparse=x_sparse), Var("y", (3, 2), "float32", sparse=y_sparse)]
    op = Op("scatter_add", {"x": ("x",)}, {"out": ("y",)}, {}, "backward")
    with pytest.raises((TypeError, ValueError)):
        Program({var.name: var for var in vars}, main=(op,)).check()


def test_ops_are_called_by_what_they_are_about():
    for op, expected in ((Op("scale", {"x": ("a",)}, {"out": ("b",)}), "scale of 'b'"),
                         (Op("adam", {"grads": ("g",)}, {"params": ("p",), "moment1": ("m",)}), "adam of 'p'"),
                         (Op("send", {"x": ("a",)}, {}), "send of 'a'"),
                         (Op("odd", {"x": ("a",)}, {"made": ("b",)}), "odd of 'b'"),
                         (Op("barrier", {}, {}), "barrier")):
        assert passes.dependencies.title(op) == expected
