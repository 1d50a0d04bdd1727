"""Listings of kernels: that they run with the same bits, that they are whole, and that they are no longer than that."""

import ast
import builtins
import functools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from refopt import cpu, gpu, verify
from refopt.catalog import LARS_MOMENTUM, ROUTINES
from refopt.dtypes import numpy_dtype
from refopt.gpu import runtime, target
from refopt.gpu.elementwise import merged_update
from refopt.gpu.loss_scale import updater
from refopt.gpu.target import Kernel, cuda, device_function, sqrt
from refopt.oracle.exact import build
from refopt.oracle.exact.build import SIGNATURES, step_of
from refopt.oracle.exact.cases import assert_same, runner
from refopt.oracle.exact.lars import gate
from refopt.oracle.exact.placed import kernels
from refopt.show import listing, source
from refopt.show.kernels import launches_of, request
from refopt.show.parts import literal
from refopt.verify.data import DTYPES

SIZES = [260, 1100]  # a row and more, a tile and more
OPTIONAL = ("moment2_max", "mean_grad")


class Listed(runtime.Executor):
    """The executor, which runs the listing of a kernel in the place of the kernel."""

    def __init__(self):
        self.ran = Counter()

    def prepare(self, kernel, grid, block, args, mode=""):
        made = executed(kernel)[kernel.name]

        def launch(stream):
            self.ran[kernel.name] += 1
            made[grid, 32, stream](*args)

        return launch


@functools.lru_cache
def executed(kernel):
    """What a listing leaves behind that is executed by itself."""
    scope = {}
    exec(compile(kernel.source(), f"<{kernel.name}>", "exec"), scope)
    return scope


@pytest.fixture
def listed(monkeypatch):
    made = Listed()
    monkeypatch.setattr(runtime, "_executor", lambda: made)
    return made


def configurations():
    """Every routine, form and dtype signature; those that differ in what kernels do are tried by make test."""
    for routine in ROUTINES.values():
        chance = build.stochastic() if "rounding" in routine.choices else []
        own = [*SIGNATURES, *build.storages(), *(build.remainders() if routine.remainders else [])]
        for form in routine.forms:
            for dtypes in dict.fromkeys(own):
                often = dtypes in SIGNATURES and form != "separate"
                marks = () if often else pytest.mark.slow
                name = f"{routine.name} {form} {'-'.join(dtypes)}"
                yield pytest.param(routine, form, dtypes, {}, marks=marks, id=name)
            for dtypes in chance:
                often = routine.name == "adamw" and form != "separate"
                choices = {"rounding": "stochastic"}
                name = f"{routine.name} {form} {'-'.join(dtypes)} by chance"
                yield pytest.param(routine, form, dtypes, choices, marks=() if often else pytest.mark.slow, id=name)


@pytest.mark.parametrize(("routine", "form", "dtypes", "choices"), [*configurations()])
def test_a_listing_has_the_same_bits(routine, form, dtypes, choices, listed):
    """Two steps, of which the second may have launches of its own."""
    steps = [step_of(routine), step_of(routine, lr=0.2)]
    case = build.make(routine, SIZES, dtypes, steps=steps, **choices)
    expected = runner(getattr(cpu, routine.merged_name))(case)
    assert_same(expected, kernels(form, listed)(case), f"{routine.name} {form}")
    assert listed.ran.total() >= 2 * routine.forms[form].launches


VARIANTS = [
    (routine, choices, optional)
    for routine in ROUTINES.values()
    for choices in ({}, *({name: x} for name, values in routine.choices.items() for x in values[1:]))
    for optional in ((), *((name,) for name in routine.states if name in OPTIONAL))
    if choices or optional
]


@pytest.mark.parametrize(("routine", "choices", "optional"), VARIANTS, ids=lambda x: getattr(x, "name", str(x)))
def test_a_listing_of_other_choices_has_the_same_bits(routine, choices, optional, listed):
    dtypes = build.stochastic()[0] if "rounding" in choices else SIGNATURES[2]
    case = build.make(routine, [5, 1100], dtypes, optional=optional, **choices)
    expected = runner(getattr(cpu, routine.merged_name))(case)
    assert_same(expected, kernels(routine.merged_form, listed)(case), str(choices))


@pytest.mark.parametrize("form", LARS_MOMENTUM.forms)
def test_a_listing_with_a_gate_has_the_same_bits(form, listed):
    """A step that is skipped between two that are not."""
    steps = [step_of(LARS_MOMENTUM) | gate(factor, found) for factor, found in ((0.3, 0), (1, 1), (0.7, 0))]
    case = build.make(LARS_MOMENTUM, SIZES, steps=steps)
    assert_same(runner(cpu.merged_lars_momentum)(case), kernels(form, listed)(case), form)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_listings_of_the_gradient_scan(dtype, listed):
    values = np.random.default_rng(0).normal(size=1300).astype(numpy_dtype(dtype))
    scan = gpu.scan([listed.to_device(values), listed.to_device(values[:7].copy())], max_norm=1.5)
    scan()
    expected = cpu.scan_gradients([values, values[:7].copy()], max_norm=1.5)
    got = [x.copy_to_host() for x in (scan.grad_factor, scan.found_inf, scan.grad_norm)]
    assert [np.asarray(x).tobytes() for x in expected] == [x.tobytes() for x in got]
    assert listed.ran == {"scan_gradients": 1, "finish_scan": 1}


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
ALL = [
    pytest.param(routine.name, dtype, form, marks=() if dtype in OFTEN and form != "separate" else pytest.mark.slow)
    for routine in ROUTINES.values() for form in routine.forms for dtype in DTYPES
    if verify.offered(routine, dtype) and (form != "separate" or dtype in ("fp32", "bf16"))
]  # fmt: skip


@pytest.mark.parametrize(("name", "form"), [(x.name, form) for x in ROUTINES.values() for form in x.forms])
def test_fp32_has_no_trace_of_other_dtypes_or_chance(name, form):
    text = text_of(name, "fp32", form)
    by_chance = "dither|philox|random|stochastic|chance|seed|rounding"
    assert not re.findall(f"{by_chance}|bf16|brain|float16|float64|f16|f64|_joined|remainder", text)


def test_the_traces_are_there_where_they_belong():
    assert {"dither4_low", "random4", "seed"} <= set(re.findall(r"\w+", text_of("adamw", "bf16-sr", "merged")))
    assert not re.search("dither|random", text_of("adamw", "bf16", "merged"))


def test_instructions_that_are_repeated_are_listed_once():
    text = text_of("adamw", "bf16-sr", "merged")
    assert text.count("mul.hi.u32 a, c0, 0xd2511f53;") == 1 and "\n#     10 times:\n#         mul.hi.u32" in text


def functions_of(text):
    return [x for x in ast.parse(text).body if isinstance(x, ast.FunctionDef)]


def loads(node):
    return [x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load)]


@pytest.mark.parametrize(("name", "dtype", "form"), ALL)
def test_every_function_once_callees_first_and_nothing_besides(name, dtype, form):
    text = text_of(name, dtype, form)
    tree = ast.parse(text)
    functions = functions_of(text)
    names = [x.name for x in functions]
    assert len(set(names)) == len(names) and not {*names} & {*dir(builtins)}
    # No two are the same but for their names, if not for the PTX above them.
    above = {x.name: re.search(rf"((?:^#.*\n)*)def {x.name}\(", text, re.MULTILINE)[1] for x in functions}
    bodies = Counter((ast.dump(x.args), *map(ast.dump, x.body), above[x.name]) for x in functions)
    assert bodies.most_common(1)[0][1] == 1
    known = {"np", "cuda", "memory", *dir(builtins)}
    used = set()
    for node in tree.body:
        own = {x.arg for x in ast.walk(node) if isinstance(x, ast.arg)}
        own |= {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        own |= {alias.name for x in ast.walk(node) if isinstance(x, ast.Import) for alias in x.names}
        if isinstance(node, ast.FunctionDef):
            assert set(loads(node)) <= known | own, node.name
            known.add(node.name)
        else:
            known |= own | {alias.asname or alias.name for alias in getattr(node, "names", [])}
        used |= set(loads(node)) - (own if isinstance(node, ast.FunctionDef) else set())
    kernels = {x.name for x in functions if any("jit" in ast.dump(d) for d in x.decorator_list)}
    assert set(names) - kernels <= used and kernels.isdisjoint(used)
    assert all(used & {x.id for t in x.targets for x in ast.walk(t) if isinstance(x, ast.Name)}
               for x in tree.body if isinstance(x, ast.Assign))  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "form"), ALL)
def test_nothing_is_left_of_what_values_decide(name, dtype, form):
    text = text_of(name, dtype, form)
    known = r"\b(?:True|False|None)\b"
    assert not re.findall(rf"\b(?:if|and|or|not|while) {known}|{known} (?:and|or|if)\b", text)
    assert max(map(len, text.split("\n"))) <= 120 and "\t" not in text and " \n" not in text
    assert not re.search("[\ue000-\uf8ff]|type: ignore|fmt: skip|noqa|<unrolled", text)
    above = "@cuda.jit", "# PTX", "    "
    for node in functions_of(text):
        line = text.split("\n")[node.lineno - 2]
        if node.decorator_list or line.startswith(above) or "lru_cache" in line:
            continue  # kernels and twins have the parameters that they are called with
        missing = {x.arg for x in node.args.args} - set(loads(node))
        assert not missing, f"{node.name}: {missing}"


def test_comments_and_docstrings_stay():
    text = text_of("lars_momentum", "fp32", "two_launches")
    for said in (
        "# asked for early, since it is needed in a hurry",
        "# The last arrival turns the counter back to 0, for the next step.",
        '"""The sum over a warp, neighbouring threads first: that of x in even threads, of y in odd ones."""',
        "# Columns of the node table: first child's slot",
        "#     ld.global.L2::cache_hint.v4.f32 {$0, $1, $2, $3}, [$4], policy; }",
        "# PTX: $0 to $3 are returned; $4 is passed\n",
        "# PTX: from compute capability 9.0 on, before it nothing\n#     griddepcontrol.wait;\ndef wait_for_previous",
        "WHOLE_WARP = 0xFFFFFFFF\n",
        "@cuda.jit(launch_bounds=(64, 14))\ndef merged_lars_update(",
    ):
        assert said in text, said


def test_listings_are_stable():
    """Whatever the hash seed is, and what was listed before."""
    asked = [("lars_momentum", "bf16-amp", "carried_norm"), ("adamw", "bf16-sr", "merged"), ("lamb", "fp16", "merged")]
    code = f"import sys, test_listing as t; sys.stdout.write(''.join(t.text_of(*x) for x in {asked[::-1]}[::-1]))"
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    env = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "3"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "".join(text_of(*x) for x in asked), done.stderr


# That a listing is what the GPU runs.


def instructions(ptx):
    """A PTX text without what depends on names: they are numbered, as are arrays in shared memory."""
    ptx = re.sub(r"//[^\n]*|/\*.*?\*/", "", ptx, flags=re.DOTALL)
    ptx = re.sub(r"(?m)^\s*\.(?:file|loc|common|visible \.shared) [^\n]*$", "", ptx)
    numbers = {}
    ptx = re.sub(r"\b_(?:Z|cudapy_smem_)\w+", lambda found: numbers.setdefault(found[0], f"name{len(numbers)}"), ptx)
    return [" ".join(line.split()) for line in ptx.split("\n") if line.strip()]


def compiled(made):
    """A listing's kernels, of its functions, with the PTX of the originals' intrinsics."""
    scope, kernels = {}, {}
    exec(made.text, scope)
    for name, of in made.functions.items():
        if isinstance(of, Kernel):
            kernels[of] = Kernel(scope[name].py_func, of.launch_bounds)
        elif hasattr(of, "asm") or of is sqrt:
            scope[name].__refopt_numba__ = of.__refopt_numba__
        elif hasattr(of, "__refopt_numba__"):
            device_function(scope[name])
    return kernels


PTX = [
    ("sgd", "fp32", "merged"), ("novograd", "fp16-amp", "merged"),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in (
        *((name, "fp32", form) for name in ROUTINES for form in ROUTINES[name].forms if name != "sgd"),
        *(("adamw", dtype, "merged") for dtype in DTYPES if dtype != "fp32"),
        *(("lars_momentum", dtype, "carried_norm") for dtype in DTYPES if dtype not in ("fp32", "bf16-sr")),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "form"), PTX)
def test_a_listing_compiles_to_the_same_ptx(name, dtype, form):
    """Instruction by instruction, register by register."""
    if why := target.no_compiler():
        pytest.skip(f"compiles no PTX: {why}")
    from refopt.gpu.driver import signature_of

    launches = launches_of(request(name, dtype, form), [5, 2000])
    made = compiled(listing(launches.kernels))
    assert made.keys() == set(launches.kernels)
    for kernel, args in {x.kernel: x.args for x in launches.prepared}.items():
        signature = signature_of(args)
        assert instructions(made[kernel].ptx(signature)) == instructions(kernel.ptx(signature)), kernel.name


# What the text of a function becomes, by kernels of this file.

# Above the constant.
USED, ALSO = 3, 4  # beside it


def kernel_of(yes, size, real=np.float32, other=None):
    """A kernel that closes over what it is given."""
    zero, no, off = real(0), not yes, (real(1), real(2))

    @device_function
    def passed(x, i):
        return x[i]

    @device_function
    def third(x, unused, i):
        return passed(x, i)

    @device_function
    def always(x):
        return yes

    @device_function
    def counted(x, i, by):
        x[i] += by
        return x[i]

    @device_function
    def pair(x, i):
        """Two."""
        return (x[i], x[i + 1])

    @device_function
    def same(values):
        return (values[0], values[1])

    @target.kernel((32, 2))
    def shown(x, n, unread):
        # Above.
        i, dead, also = cuda.threadIdx.x, n + 1, USED  # beside
        gone = dead + 1  # noqa: F841
        kept = counted(x, 0, zero)  # noqa: F841
        if no:
            x[0] = 1
        elif i < size * 2:  # a branch
            x[1] = third(x, counted(x, 1, zero), i + size)
        elif yes:
            # The one that is left.
            x[2] = off[1] if yes else off[0]
        else:
            x[3] = 1
        if always(x) and i == 0:
            values = pair(x, i)
            store = same(values)
            x[4] = store[0] + (zero if no else store[1])
        if yes:
            if not no:
                x[5] = also  # deep
                return
            x[6] = 1
        x[7] = 1

    return shown


def body_of(text, name):
    """The lines of a function."""
    return text[text.index(f"def {name}(") :].split("\n\n\n")[0].rstrip("\n")


def test_what_is_written_of_a_function():
    text = kernel_of(True, 2).source()
    assert body_of(text, "shown") == """\
def shown(x, n, unread):
    # Above.
    i, also = cuda.threadIdx.x, USED  # beside
    kept = counted(x, 0, zero)
    if i < 4:  # a branch
        x[1] = third(x, counted(x, 1, zero), i + 2)
    else:
        # The one that is left.
        x[2] = off[1]
    if i == 0:
        values = pair(x, i)
        store = values
        x[4] = store[0] + store[1]
    x[5] = also  # deep
    return"""


def test_what_is_written_of_the_same_function_for_other_values():
    text = kernel_of(False, 3).source()
    assert body_of(text, "shown") == """\
def shown(x, n, unread):
    kept = counted(x, 0, zero)
    x[0] = 1
    x[7] = 1"""


def wide():
    """Another function of a name that there is, and another constant."""
    zero = np.float64(0)

    @device_function
    def counted(x, i):
        x[i] += zero
        return i

    return counted


@device_function
def apart(x, i, j):
    """The second is looked at first."""
    return x[j] - x[i]


@device_function
def turned(x, i, j):
    return apart(x, j, i)


@device_function
def twice(x, i):
    return apart(x, i, i)


@device_function
def noted(x, i):
    later(x)


@device_function
def surely(x):
    return True


@device_function
def three(x):
    return x[0], x[1], x[2]


@device_function
def later(x):
    return x[0] + x[0]


@device_function
def two_of(values):
    return (values[0], values[1])


@device_function
def first_of(values):
    return two_of(values)[0]


def tangled():
    """A kernel in which things must stay that look as if they could go, or be moved."""
    zero, yes, other, step = np.float32(0), True, wide(), turned

    @device_function
    def counted(x, i):
        x[i] += zero
        x[i] += x[i]
        return i

    @target.kernel()
    def tangle(x, n):
        total = x[0]
        total += x[1]
        wide_counted = counted(x, 1)
        values = three(x)
        pair = two_of(values)
        x[2] = step(x, counted(x, 3), other(x, 4))
        x[3] = step(x, 0, wide_counted) + first_of(values)
        if n > 3:
            only = n
        if counted(x, 5) > 7:
            only = n  # noqa: F841
        if n == 0:
            x[6] = pair[0]
        elif not yes:
            x[6] = pair[1]
        elif n == 1:
            x[7] = 2
        else:
            x[7] = 3
        if n == 2 and yes: x[8] = 4  # noqa: E701
        x[9] = twice(x, counted(x, 9)) + twice(x, n - n)
        done = noted(x, 1)
        if (counted(x, 10) > 2 and not yes) or done is None:
            x[11] = 5
        if surely(counted(x, 11)):
            x[11] = 6
        unread, read = counted(x, 10), n  # noqa: F841
        x[10] = read
        for k in range(2):
            k = k + n
        while n > 8:
            # Down.
            n -= 1 if yes else 2

    return tangle


def test_what_does_something_stays():
    text = tangled().source()
    assert body_of(text, "tangle") == """\
def tangle(x, n):
    total = x[0]
    total += x[1]
    wide_counted = counted(x, 1)
    values = (x[0], x[1], x[2])
    pair = (values[0], values[1])
    x[2] = turned(x, counted(x, 3), other(x, 4))
    x[3] = apart(x, wide_counted, 0) + first_of(values)
    if counted(x, 5) > 7:
        pass
    if n == 0:
        x[6] = pair[0]
    elif n == 1:
        x[7] = 2
    else:
        x[7] = 3
    if n == 2: x[8] = 4
    x[9] = twice(x, counted(x, 9)) + twice(x, n - n)
    done = noted(x)
    if (counted(x, 10) > 2 and False) or done is None:
        x[11] = 5
    if surely(counted(x, 11)):
        x[11] = 6
    unread, read = counted(x, 10), n
    x[10] = read
    for k in range(2):
        k = k + n
    while n > 8:
        # Down.
        n -= 1"""
    assert "\nzero = np.float32(0)\nzero_float64 = np.float64(0)\n" in text
    assert "x[i] += zero_float64\n" in body_of(text, "other")
    assert body_of(text, "turned") == "def turned(x, i, j):\n    return apart(x, j, i)"


@pytest.mark.parametrize("n", range(10))
@pytest.mark.parametrize("made", [tangled(), kernel_of(True, 2), kernel_of(False, 3)], ids=["tangled", "yes", "no"])
def test_what_is_written_runs_as_the_function_does(made, n):
    exec(made.source(), scope := {})
    values = np.random.default_rng(n).normal(size=12).astype(np.float32)
    outcomes = []
    for kernel in (made.executor, scope[made.name]):
        x = cuda.to_device(values)
        kernel[1, 2](x, n, *[n] * (made.name == "shown"))
        outcomes.append(x.copy_to_host().tobytes())
    assert outcomes[0] == outcomes[1] != values.tobytes()


def test_names_keep_out_of_the_way_of_locals():
    """A function that goes by another name than its own, which is a local there; and names of Python's."""
    alias, range = later, np.float32(5)

    @device_function
    def max(x):
        return x[0] + range

    largest = max

    @target.kernel()
    def caller(x):
        later = x[1]
        x[2] = later + largest(x) + alias(x)

    exec(caller.source(), scope := {})
    assert {name for name in scope if name != "__builtins__"} == {
        "np", "cuda", "caller", "alias", "largest", "range_float32"
    }  # fmt: skip
    x = cuda.to_device(np.arange(1, 4, dtype=np.float32))
    scope["caller"][1, 1](x)
    assert x.copy_to_host()[2] == 2 + (1 + 5) + 2


def test_numbers_keep_their_bits():
    values = -0.0, 0.0, 1.5, 0.1, 3.0, np.inf, -np.inf, np.nan
    numbers = [kind(x) for kind in (np.float32, np.float64) for x in values]
    for number in [*numbers, np.int64(-3), np.uint32(7)]:
        again = eval(literal(number), {"np": np})
        assert type(again) is type(number) and again.tobytes() == number.tobytes()
    assert literal((numbers[1],)) == "(np.float32(0),)"
    assert literal((numbers[1],) * 8) == "(np.float32(0),) * 8"


def test_intrinsics_of_one_name_are_told_apart_by_their_ptx():
    def made(asm):
        @target.intrinsic(asm, "", "", "")
        def barrier():
            """The twin."""

        return barrier

    one, two, one_again = made("bar.sync 0;"), made("bar.sync 1;"), made("bar.sync 0;")

    @target.kernel()
    def waits():
        one()
        two()
        one_again()

    text = waits.source()
    names = re.findall(r"#     bar\.sync (\d);\ndef (\w+)\(", text)
    assert [number for number, _ in names] == ["0", "1"]
    calls = [name for _, name in names]
    assert body_of(text, "waits") == f"def waits():\n    {calls[0]}()\n    {calls[1]}()\n    {calls[0]}()"


def test_a_function_without_a_file():
    exec("def typed(x):\n    x[0] = 1", scope := {})
    with pytest.raises(OSError, match=r"^source: expected functions of a file that can be read, got one of <string>$"):
        Kernel(scope["typed"]).source()


def test_what_made_a_kernel_is_told():
    assert updater().source().startswith(
        "# update_loss_scaling, made by refopt.gpu.loss_scale.updater()\n#\n# Sources: refopt.gpu.loss_scale\n\nimport"
    )
    text = merged_update(ROUTINES["sgd"], ("float32", "float16", None), (("rounding", "nearest"),)).source()
    made = "refopt.gpu.elementwise.merged_update(sgd, (float32, float16, None), ((rounding, nearest)))"
    assert text.startswith(f"# merged_sgd, made by {made}\n#\n")
