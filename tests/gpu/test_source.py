"""`refopt.gpu.show`: the printed files have every function that kernels run, and no function is made from text."""

import ast
import inspect
import itertools
import re
import types
from functools import lru_cache
from pathlib import Path

import pytest

from refopt import gpu
from refopt.catalog import KNOWN
from refopt.catalog.data import DTYPES, offered
from refopt.gpu import show
from refopt.gpu.kernels import Kernel

FOLDER = Path(gpu.__file__).parent


def requests(routine):
    """Every dtype, form, choice and optional state of a routine; and Hopper's kernels."""
    optional = [slot.name for slot in routine.slots if slot.optional and slot.name != "master_params"]
    for dtype, form in itertools.product([name for name in DTYPES if offered(routine, name)], routine.forms):
        others = [{name: value} for name, values in routine.choices.items() for value in values[1:]
                  if name != "compute" or value in show.computed(DTYPES[dtype].param)]
        yield from (show.request(routine.name, dtype, form, optional, choices) for choices in ({}, *others))
        yield show.request(routine.name, dtype, form)
    if routine.matrix_arguments:
        yield show.request(routine.name, hopper=True)


def functions_of(value, found):
    """The functions that a kernel can call, by what Python says that they name; bodies of intrinsics are not called."""
    if isinstance(value, types.SimpleNamespace):
        for each in vars(value).values():
            functions_of(each, found)
    elif hasattr(value, "__refopt_numba__") and isinstance(value, types.FunctionType) and value not in found:
        found.add(value)
        if not hasattr(value, "asm"):
            named_in(value, found)
    return found


def named_in(function, found):
    named = inspect.getclosurevars(function)
    for value in (*named.nonlocals.values(), *named.globals.values()):
        functions_of(value, found)
        for name in named.unbound if isinstance(value, types.ModuleType) else ():
            functions_of(getattr(value, name, None), found)
    return found


@lru_cache
def text_of(code):
    return "".join(inspect.getsourcelines(code)[0])


@pytest.mark.parametrize("routine", KNOWN.values(), ids=lambda x: x.name)
def test_every_function_of_a_kernel_is_in_a_printed_file(routine):
    """Verbatim; the kernel's own file is the first."""
    kernels = {}
    for asked in requests(routine):
        kernels |= dict.fromkeys(show.launches_of(asked, [(5, 3), (2000, 2)]).kernels)
    assert kernels
    for kernel in kernels:
        files = show.files([kernel])
        assert next(iter(files.values()))[0] == kernel.function and all(FOLDER in path.parents for path in files)
        for path, functions in files.items():
            text = path.read_text()
            assert all(text_of(inspect.unwrap(function).__code__) in text for function in functions)
        assert named_in(kernel.function, {kernel.function}) == {*itertools.chain(*files.values())}


@pytest.mark.parametrize("routine", KNOWN.values(), ids=lambda x: x.name)
def test_what_is_printed(routine):
    """The catalogue's arrays and numbers; then each file under its name, whole, the rule's among them."""
    asked = show.request(routine.name)
    text = show.source(asked)
    head, *parts = re.split(r"(?m)^# ---- (\S+\.py)(?:: .*)?\n(?:#      .*\n)*", text)
    for path, part in zip(parts[::2], parts[1::2], strict=True):
        assert part.rstrip("\n") == (FOLDER.parents[1] / path).read_text().rstrip("\n")
    assert len({*parts[::2]}) == len(parts[::2])
    assert routine.matrix_arguments or f"refopt/gpu/rules/{routine.name}.py" in parts
    assert {*re.findall(r"(\w+)\[(?:\d|as many)", head)} >= {x.kernel.name for x in show.launches_of(asked).steady}
    said = " ".join(re.sub("(?m)^#", "", head).split())
    given = [slot.name for slot in routine.slots if not slot.optional]
    assert re.findall(r"(\w+) float32", said) == given
    for lead, names in (("addresses", given), ("hyper", [x.name for x in routine.hypers])):
        rows = re.search(rf"rows of {lead}: ((?:\d+ \w+(?:, )?)+)", said)[1]
        assert re.findall(r"\d+ (\w+)", rows) == names
    assert all(f"{name}={values[0]}" in said for name, values in routine.choices.items() if name != "rounding")
    form = routine.forms[asked.form]
    if not routine.matrix_arguments:
        assert len(show.launches_of(asked).steady) == form.launches


def test_files_are_callers_first():
    kernels = show.launches_of(show.request("adamw", "fp16-amp"), [(5,)]).kernels
    names = [path.relative_to(FOLDER).as_posix() for path in show.files(kernels)]
    assert names[0] == "elementwise.py" and names.index("rows.py") < names.index("vectors.py")
    assert names.index("rules/adamw.py") < names.index("rules/adam.py")


def test_functions_are_visited_in_the_order_of_their_mention():
    def kernel():
        return zeta(), alpha()

    zeta, alpha = (gpu.target.device_function(lambda x=x: x) for x in (1, 2))
    assert show._by_mention(kernel) == [zeta, alpha]
    assert Kernel(kernel)._intrinsics == []


def made_from_text(text):
    """The calls that make functions of text."""
    return [node.func.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name) and node.func.id in ("exec", "eval", "compile", "__import__")]


def test_no_function_is_made_from_text():
    assert not [path for path in FOLDER.rglob("*.py") if made_from_text(path.read_text())]
    assert made_from_text("f = exec('x')\nre.compile('x')\ny = [eval(z)]") == ["exec", "eval"]
