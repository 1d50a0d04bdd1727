"""Listings of kernels: that they run with the same bits, that they are whole, and that they are no longer than that."""

import ast
import builtins
import functools
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import texts

from refopt import cpu, gpu
from refopt.catalog import KNOWN, LARS_MOMENTUM, ROUTINES
from refopt.catalog.data import DTYPES
from refopt.checks.dtypes import numpy_dtype
from refopt.cli import verify
from refopt.gpu import runtime, target, words
from refopt.gpu.gradient_check import checker
from refopt.gpu.kernels import Kernel
from refopt.gpu.ladder import coalesce as ladder_coalesce
from refopt.gpu.listing import text as listing_text
from refopt.gpu.show import listing, source
from refopt.gpu.show.kernels import launches_of, request
from refopt.gpu.target import device_function, sqrt, transposed
from refopt.oracle.exact import build
from refopt.oracle.exact.build import SIGNATURES, step_of
from refopt.oracle.exact.cases import assert_same, runner
from refopt.oracle.exact.lars import gate
from refopt.oracle.exact.placed import kernels

SIZES = [260, 1100]  # a row and more, a tile and more
OPTIONAL = ("moment2_max", "mean_grad")
check_gradients = checker("float32", np.float32)


class Listed(runtime.Executor):
    """The executor, which runs the listing of a kernel in place of the kernel."""

    def __init__(self):
        self.ran = Counter()

    def prepare(self, kernel, grid, block, args, mode=""):
        made = executed(kernel)[kernel.name]

        def launch(stream):
            self.ran[kernel.name] += 1
            made[grid, block if mode == "whole" else 32, stream](*args)

        return launch


@functools.lru_cache
def executed(kernel):
    """What a listing leaves behind that is executed by itself."""
    return texts.executed(kernel.source())


@pytest.fixture
def listed(monkeypatch):
    made = Listed()
    monkeypatch.setattr(runtime, "_executor", lambda: made)
    return made


STORED = ("adamw", "merged"), ("lars_momentum", "two_launches")  # of which make test lists every storage


def configurations():
    """Every routine, form and dtype signature; those that differ in what kernels do are tried by make test."""
    for routine in ROUTINES.values():
        chance = build.stochastic() if "rounding" in routine.choices else []
        own = dict.fromkeys([*SIGNATURES, *build.storages(), *build.remainders()])
        for form in routine.forms:
            for dtypes, choices in (*((x, {}) for x in own), *((x, {"rounding": "stochastic"}) for x in chance)):
                often = dtypes == SIGNATURES[0] or ((routine.name, form) in STORED and dtypes in SIGNATURES)
                often = form != "separate" and (often or (routine.name == "adamw" and bool(choices)))
                name = f"{routine.name} {form} {'-'.join(dtypes)}{' by chance' * bool(choices)}"
                marks = () if often else pytest.mark.slow
                yield pytest.param(routine, form, dtypes, choices, marks=marks, id=name)


def assert_listed(listed, case, form):
    """Listings leave what the reference does."""
    expected = runner(getattr(cpu, case.routine.merged_name))(case)
    assert_same(expected, kernels(form, listed)(case), f"{case.routine.name} {form}")


@pytest.mark.parametrize(("routine", "form", "dtypes", "choices"), [*configurations()])
def test_a_listing_has_the_same_bits(routine, form, dtypes, choices, listed):
    """Two steps, of which the second may have launches of its own."""
    case = build.make(routine, SIZES, dtypes, steps=[step_of(routine), step_of(routine, lr=0.2)], **choices)
    assert_listed(listed, case, form)
    assert listed.ran.total() >= 2 * routine.forms[form].launches


FEW = "adam", "rmsprop", "lars_momentum", "novograd", "lamb"
VARIANTS = [pytest.param(routine, choices, optional, id=f"{routine.name}-{choices}-{optional}",
                         marks=() if routine.name in FEW and not (choices and optional) else pytest.mark.slow)
            for routine in ROUTINES.values()
            for choices in ({}, *({name: x} for name, values in routine.choices.items() for x in values[1:]))
            for optional in ((), *((name,) for name in routine.states if name in OPTIONAL)) if choices or optional]


@pytest.mark.parametrize(("routine", "choices", "optional"), VARIANTS)
def test_a_listing_of_other_choices_has_the_same_bits(routine, choices, optional, listed):
    dtypes = build.stochastic()[0] if "rounding" in choices else SIGNATURES[2]
    assert_listed(listed, build.make(routine, [5, 1100], dtypes, optional=optional, **choices), routine.merged_form)


@pytest.mark.parametrize("form", LARS_MOMENTUM.forms)
def test_a_listing_with_a_gate_has_the_same_bits(form, listed):
    """A step that is skipped between two that are not."""
    steps = [step_of(LARS_MOMENTUM) | gate(factor, found) for factor, found in ((0.3, 0), (1, 1), (0.7, 0))]
    assert_listed(listed, build.make(LARS_MOMENTUM, SIZES, steps=steps), form)


@pytest.mark.parametrize("compute", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_a_listing_of_muon_has_the_same_bits(compute, listed):
    pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(0)
    lists = [[rng.normal(size=shape).astype(np.float32) for shape in ((9, 5), (3, 20))] for _ in range(3)]
    on_device = [[listed.to_device(x) for x in xs] for xs in lists]
    numbers = {"lr": 0.1, "iterations": 1, "compute": compute}
    gpu.plan("muon", *on_device, **numbers)()
    cpu.merged_muon(*lists, **numbers)
    for ours, theirs in zip(lists, on_device, strict=True):
        assert [x.tobytes() for x in ours] == [x.copy_to_host().tobytes() for x in theirs]
    assert listed.ran.total() == len(listed.ran) == 6


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_listings_of_the_gradient_check(dtype, listed):
    values = np.random.default_rng(0).normal(size=1300).astype(numpy_dtype(dtype))
    check = gpu.gradient_check([listed.to_device(values), listed.to_device(values[:7].copy())], max_norm=1.5)
    check()
    expected = cpu.check_gradients([values, values[:7].copy()], max_norm=1.5)
    got = [x.copy_to_host() for x in (check.grad_factor, check.found_inf, check.grad_norm)]
    assert [np.asarray(x).tobytes() for x in expected] == [x.tobytes() for x in got]
    assert listed.ran == {"check_gradients": 1, "finish_check": 1}


@pytest.mark.parametrize("scale", [1, 0.3])
@pytest.mark.parametrize("pair", ["float32 float32", "float64 float16", "float32 bfloat16", "float16 float64"])
def test_listings_of_casts(pair, scale, listed):
    """And of moves, which compute nothing."""
    source, target = map(numpy_dtype, pair.split())
    values = np.random.default_rng(0).normal(size=700).astype(source)
    expected, made = np.zeros(700, target), listed.to_device(np.zeros(700, target))
    cpu.merged_cast([values], [expected], scale=scale)
    gpu.cast_plan([listed.to_device(values)], [made], scale=scale)()
    assert made.copy_to_host().tobytes() == expected.tobytes() and listed.ran.total() == 1


def test_listings_of_the_loss_scale_and_of_fill(listed):
    arrays = [np.ones(1, np.float32), np.full(1, 8, np.float32), np.zeros(1, np.int32), np.ones(1, np.int32)]
    on_device = [listed.to_device(x) for x in arrays]
    gpu.update_loss_scaling(*on_device, decr_every_n_nan_or_inf=2)
    cpu.update_loss_scaling(*arrays, decr_every_n_nan_or_inf=2)
    assert [x.copy_to_host().tobytes() for x in on_device] == [x.tobytes() for x in arrays] and arrays[1] == 4
    made = gpu.coalesce_tensor([listed.to_device(np.ones(5, np.float32))], set_constant=True, constant=3.0)
    assert (made.buffer.copy_to_host() == 3).all() and set(listed.ran) == {"update_loss_scaling", "fill"}


# What is in a listing.


@functools.lru_cache
def text_of(name, dtype, form=None):
    return source(name, dtype, form)


OFTEN = "fp32", "fp16-amp", "bf16-sr"  # of which make test looks at listings
OTHERS = ("novograd", "fp64"), ("lion", "bf16+16")  # a load with and without a hint; a local named like a function
ALL = [
    pytest.param(routine.name, dtype, form, marks=() if form != "separate" and (
        dtype == "fp32" or (routine.name, dtype) in OTHERS or (
            dtype in OFTEN and routine.name in ("adamw", "lars_momentum"))) else pytest.mark.slow)
    for routine in ROUTINES.values() for form in routine.forms for dtype in DTYPES
    if verify.offered(routine, dtype) and (form != "separate" or dtype in ("fp32", "bf16"))]


@pytest.mark.parametrize(("name", "dtype", "form"), [row for row in ALL if row.values[1] == "fp32"])
def test_fp32_has_no_trace_of_other_dtypes_or_chance(name, dtype, form):
    text = text_of(name, dtype, form)
    by_chance = "dither|philox|random|stochastic|chance|seed|rounding"
    assert not re.findall(f"{by_chance}|bf16|brain|float16|float64|f16|f64|_joined|remainder", text)


def test_the_traces_are_there_where_they_belong():
    assert {"dither4_low", "random4", "seed"} <= set(re.findall(r"\w+", text_of("adamw", "bf16-sr", "merged")))
    assert not re.search("dither|random", text_of("adamw", "bf16", "merged"))
    kept = "\n@lru_cache(1 << 16)  # refopt/gpu/philox.py\ndef _words("  # as it is there
    assert kept in text_of("adamw", "bf16-sr", "merged")


def test_instructions_that_are_repeated_are_listed_once():
    text = text_of("adamw", "bf16-sr", "merged")
    assert text.count("mul.hi.u32 a, c0, 0xd2511f53;") == 1 and "\n#     10 times:\n#         mul.hi.u32" in text


@pytest.mark.parametrize(("times", "said"), [(2, 0), (3, 1)])
def test_instructions_that_come_twice_stay(times, said):
    six, others = ([f"{name} r{k}, a, b;" for k in range(6)] for name in ("add", "mul"))
    lines = listing_text._instructions([*six * times, *others])
    found = lines.count(f"{times} times:"), sum(line.count("add r0") for line in lines)
    assert found == (said, 1 if said else times)


def functions_of(text):
    return [x for x in ast.parse(text).body if isinstance(x, ast.FunctionDef)]


def loads(node):
    return [x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load)]


def stores(node):
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}


@pytest.mark.parametrize(("name", "dtype", "form"), ALL)
def test_every_function_once_callers_first_and_nothing_besides(name, dtype, form):
    text = text_of(name, dtype, form)
    tree = ast.parse(text)
    functions = functions_of(text)
    names = [x.name for x in functions]
    assert len(set(names)) == len(names) and not {*names} & {*dir(builtins)}
    # No two are the same but for their names, if not for the PTX above them.
    above = {x.name: re.search(rf"((?:^[#@].*\n)*)def {x.name}\(", text, re.MULTILINE)[1] for x in functions}
    bodies = Counter((ast.dump(x.args), *map(ast.dump, x.body), above[x.name]) for x in functions)
    assert bodies.most_common(1)[0][1] == 1
    known = {"np", "cuda", "memory", *dir(builtins)} | {*names}
    used = set()
    for n, node in enumerate(functions):  # each stands below all that call it
        assert {*loads(node)}.isdisjoint({*names[: n + 1]} - stores(node)), node.name
    for node in tree.body:
        own = {x.arg for x in ast.walk(node) if isinstance(x, ast.arg)} | stores(node)
        own |= {alias.name for x in ast.walk(node) if isinstance(x, ast.Import) for alias in x.names}
        if isinstance(node, ast.FunctionDef):
            assert set(loads(node)) <= known | own, node.name
        else:
            known |= own | {alias.asname or alias.name for alias in getattr(node, "names", [])}
        used |= set(loads(node)) - (own if isinstance(node, ast.FunctionDef) else set())
    decorators = {x.name: " ".join(map(ast.unparse, x.decorator_list)) for x in functions}
    kernels = {name for name, text in decorators.items() if "jit" in text and "device" not in text}
    assert set(names) - kernels <= used and kernels.isdisjoint(used)
    given = [{x.id for t in x.targets for x in ast.walk(t) if isinstance(x, ast.Name)}
             for x in tree.body if isinstance(x, ast.Assign)]
    assert all(used & x for x in given) and max(Counter(chain(*given, names)).values()) == 1


@functools.lru_cache
def made(name, dtype, form):
    return listing(launches_of(request(name, dtype, form)).kernels)


@pytest.mark.parametrize(("name", "dtype", "form"), [*ALL, pytest.param("muon", "fp32", "merged")])
def test_functions_have_the_names_of_their_files(name, dtype, form):
    """No name is made up, such as one with a number."""
    functions = made(name, dtype, form).functions
    assert all(name == getattr(of, "function", of).__name__ for name, of in functions.items())


def test_kernels_of_hopper_are_told_and_refused_by_the_executor():
    """Muon's products by warpgroups have no twins; their PTX stands instead, without 64 operands in a row."""
    asked = request("muon", hopper=True)
    text, functions = listing(launches_of(asked).kernels)
    assert all(name == getattr(of, "function", of).__name__ for name, of in functions.items())
    assert "\nMULTIPLYING = LOADING = HEIGHT // 16  #" in text
    assert 'm64n128k16.f32.bf16.bf16 {$0, ..., $63}, a, b, 1, 1, 1, 1, 1;' in text
    assert '\n@ptx_twin(*["float32"] * 64)  # refopt/gpu/warpgroup.py\ndef multiply_along_along_to128(' in text
    assert "# PTX: $0 and $1 are passed; on compute capability 9.0 alone\n#     mbarrier.init" in text
    kernel = texts.executed(text)["warpgroup_products_added"]
    with pytest.raises(NotImplementedError):
        kernel[1, 320](np.zeros((1, 3), np.int64), np.ones((1, 8), np.int64), np.float32(0), np.float32(0))


@pytest.mark.parametrize(("result", "types"), [
    ("f" * 9, '*["float32"] * 9'), ("f" * 8 + "d", ", ".join(['"float32"'] * 8 + ['"float64"'])),
    ("f" * 8, ", ".join(['"float32"'] * 8))])
def test_many_results_of_one_type_are_counted(result, types):
    @target.intrinsic("made;", ",".join(f"={letter}" for letter in result), result, "")
    def made():
        return (np.float32(0),) * len(result)

    @gpu.cuda.jit
    def kernel(out):
        out[0] = made()[0]

    assert f"@ptx_twin({types})" in kernel.source()


def test_operands_that_do_not_follow_each_other_are_written_out():
    row = ", ".join(f"${n}" for n in (*range(8), 9))
    assert listing_text._indented(f"add {{{row}}};") == [f"#     add {{{row}}};"]
    assert listing_text._indented(f"add {{{row}, $10}};") == [f"#     add {{{row}, $10}};"]
    assert listing_text._indented("add " + ", ".join(f"${n}" for n in range(7, 16)) + ";") == [
        "#     add $7, ..., $15;"]
    assert listing_text._indented("add " + ", ".join(f"${n}" for n in range(8)) + ";") == [
        "#     add $0, $1, $2, $3, $4, $5, $6, $7;"]


@pytest.mark.parametrize(("name", "form"), [(x.name, form) for x in KNOWN.values() for form in x.forms])
def test_no_name_has_two_meanings(name, form):
    """No function and no constant of a module shares its name with a local variable or a parameter of any function."""
    functions = functions_of(text := made(name, "fp32", form).text)
    outer = {x.name for x in functions}
    outer |= {x.id for node in ast.parse(text).body if isinstance(node, ast.Assign)
              for target in node.targets for x in ast.walk(target) if isinstance(x, ast.Name)}
    for node in functions:
        inner = {x.arg for x in ast.walk(node) if isinstance(x, ast.arg)}
        inner |= {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        assert not inner & outer, node.name


@pytest.mark.parametrize("kernel", [words.merged_move, words.fill, ladder_coalesce.gather_4, check_gradients])
def test_names_of_other_kernels(kernel):
    """A word's width is part of the names of what moves it."""
    functions = listing([kernel]).functions
    assert all(name == getattr(of, "function", of).__name__ for name, of in functions.items())
    if kernel is words.merged_move:
        assert {f"{what}{width}" for what in ("move", "load", "store") for width in (16, 8, 4, 2, 1)} <= {*functions}


@pytest.mark.parametrize(("name", "dtype", "form"), ALL)
def test_nothing_is_left_of_what_values_decide(name, dtype, form):
    text = text_of(name, dtype, form)
    known = r"\b(?:True|False|None)\b"
    assert not re.findall(rf"\b(?:if|and|or|not|while) {known}|{known} (?:and|or|if)\b", text)
    assert max(map(len, text.split("\n"))) <= 120 and "\t" not in text and " \n" not in text
    assert not re.search("[\ue000-\uf8ff]|type: ignore|noqa|<unrolled", text)


def test_comments_and_docstrings_stay():
    text = text_of("lars_momentum", "fp32", "two_launches")
    for said in ("# How many chunks the node counts. Loaded early",
                 "# The last arrival resets the counter to 0 for the next step.",
                 '"""The sum over a warp, neighbouring threads first: of x on even threads, of y on odd ones."""',
                 "# Columns of the node table: the slot of the first child's sum",
                 "#     ld.global.L2::cache_hint.v4.f32 {$0, $1, $2, $3}, [$4], policy; }",
                 "# PTX: $0 to $3 are returned; $4 is passed\n",
                 "# PTX: from compute capability 9.0 on, before it nothing\n#     griddepcontrol.wait;\n"
                 "@ptx_twin()  # refopt/gpu/target.py\ndef wait_for_previous", "WHOLE_WARP = 0xFFFFFFFF\n",
                 "@cuda.jit(launch_bounds=(64, 14))  # refopt/gpu/norms/__init__.py\ndef merged_lars_momentum_update("):
        assert said in text, said


def test_listings_are_stable():
    """Whatever the hash seed is, and what was listed before."""
    asked = [("lars_momentum", "bf16-amp", "carried_norm"), ("adamw", "bf16-sr", "merged"), ("lamb", "fp16", "merged")]
    code = f"import sys, gpu.test_listing as t; sys.stdout.write(''.join(t.text_of(*x) for x in {asked[::-1]}[::-1]))"
    path = os.pathsep.join([*map(str, Path(__file__).parents[1:3]), *sys.path])
    env = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "3"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "".join(text_of(*x) for x in asked), done.stderr


# That a listing is what the GPU runs.


def instructions(ptx):
    """A PTX text without what depends on names: they are numbered, as are arrays in shared memory.

    A version of the compiler may order the operands of an addition by the names of variables.
    """
    ptx = re.sub(r"(add\.rn\.f\d\d\s+%\w+), (%\w+), (%\w+);", lambda m: ", ".join((m[1], *sorted(m.group(2, 3)))) + ";",
                 ptx)
    ptx = re.sub(r"//[^\n]*|/\*.*?\*/", "", ptx, flags=re.DOTALL)
    ptx = re.sub(r"(?m)^\s*\.(?:file|loc|common|visible \.shared) [^\n]*$", "", ptx)
    numbers = {}
    ptx = re.sub(r"\b_(?:Z|cudapy_smem_)\w+", lambda found: numbers.setdefault(found[0], f"name{len(numbers)}"), ptx)
    lines = [" ".join(line.split()) for line in ptx.split("\n") if line.strip()]
    entry = next(k for k, line in enumerate(lines) if line.startswith(".visible .entry"))
    return sorted(lines[:entry]) + lines[entry:]  # what is declared outside comes in any order


def compiled(made):
    """A listing's kernels, of its functions, with the PTX of the originals' intrinsics."""
    scope, kernels = {}, {}
    exec(made.text, scope)
    for name, of in made.functions.items():
        if isinstance(of, Kernel):
            kernels[of] = Kernel(scope[name].py_func, of.launch_bounds)
        elif hasattr(of, "asm") or of in (sqrt, transposed):
            scope[name].__refopt_numba__ = of.__refopt_numba__
        elif hasattr(of, "__refopt_numba__"):
            device_function(scope[name])
    return kernels


PTX = [
    ("sgd", "fp32", "merged"), *(pytest.param(*row, marks=pytest.mark.slow)
      for row in (("novograd", "fp16-amp", "merged"),
                  *((name, "fp32", form) for name in ROUTINES for form in ROUTINES[name].forms if name != "sgd"),
                  *(("adamw", dtype, "merged") for dtype in DTYPES if dtype != "fp32"),
                  *(("lars_momentum", dtype, "carried_norm") for dtype in DTYPES if dtype not in ("fp32", "bf16-sr"))))]


@pytest.mark.parametrize(("name", "dtype", "form"), PTX)
def test_a_listing_compiles_to_the_same_ptx(name, dtype, form):
    """Instruction by instruction, register by register."""
    if why := target.no_compiler():
        pytest.skip(f"compiles no PTX: {why}")
    from refopt.gpu.driver import signature_of

    launches = launches_of(request(name, dtype, form), [(5,), (2000,)])
    made = compiled(listing(launches.kernels))
    assert made.keys() == set(launches.kernels)
    for kernel, args in {x.kernel: x.args for x in launches.prepared}.items():
        signature = signature_of(args)
        assert instructions(made[kernel].ptx(signature)) == instructions(kernel.ptx(signature)), kernel.name
