"""Kernels in stock Numba: with ``from numba import cuda`` in the place of refopt's line, and otherwise as they stand.

They are those of the ladders, of the exercises' solutions, of notebooks 1, 2 and 2b and of two pages, by their text.
What calls nothing of refopt's is compiled by Numba to PTX, which differs from refopt's by contraction alone.
"""

import ast
import dis
import importlib
import pkgutil
import re
import types
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import exercises
import needs
import numpy as np
import page_code
import pytest
from refopt_exercises import cells

from benchmarks.record import ROOT
from gpu import test_ladder_matmul
from gpu.test_ladder import CLIP, NUMBERS, adam_lists, normal, placed
from gpu.test_ladder_norms import LADDERS
from refopt import gpu
from refopt.gpu import cuda, ladder
from refopt.gpu.exactness import instructions
from refopt.gpu.ladder import adam
from refopt.gpu.machine import dotted
from refopt.gpu.target import signature_of

REFOPT, NUMBA = "from refopt.gpu import cuda", "from numba import cuda"
SOLUTIONS = exercises.FOLDER / "refopt_exercises" / "solutions"
NOTEBOOKS = "1-why-merging-pays", "2-from-ten-lines", "2b-sums"
PARTS = {"refopt.gpu.parts", "refopt.gpu.target", "refopt.gpu.tensor_core", "refopt.gpu.vectors"}


# Kernels, as a reader would paste them.


class Pasted(NamedTuple):
    """A kernel of a page, the text of it and of all that it needs but ``cuda``, and refopt's modules in that."""

    page: str
    name: str
    text: str
    modules: frozenset[str]

    def below(self, line, folder):
        """The kernel, below an import of ``cuda``."""
        path = folder / f"{self.page}-{self.name}.py"
        path.write_text(f"{line}\n{self.text}")
        scope = {"__name__": self.page}
        exec(compile(path.read_text(), str(path), "exec"), scope)
        return scope[self.name]


class Statement(NamedTuple):
    """Its first line, its text, and the module that it imports from."""

    line: int
    text: str
    module: str = ""


def statements(text):
    """What a text defines or imports, by name; of another ladder it has what that one defines, at lines before its own.
    """
    found, lines = {}, text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            origin = getattr(node, "module", "")
            for alias in node.names:
                if origin.startswith(f"{ladder.__name__}."):
                    above = statements(Path(importlib.import_module(origin).__file__).read_text())
                    found |= {name: x._replace(line=x.line - 1000) for name, x in needed(alias.name, above).items()}
                    continue
                line = ast.unparse(ast.ImportFrom(origin, [alias]) if origin else ast.Import([alias]))
                module = f"{origin}.{alias.name}" if origin == "refopt.gpu" else origin or alias.name
                found[alias.asname or alias.name] = Statement(node.lineno, line, module)
        elif isinstance(node, ast.FunctionDef | ast.Assign):
            first = min([node.lineno, *(x.lineno for x in getattr(node, "decorator_list", []))])
            statement = Statement(first, "\n".join(lines[first - 1 : node.end_lineno]))
            targets = [x for target in getattr(node, "targets", []) for x in ast.walk(target)]
            names = [x.id for x in targets if isinstance(x, ast.Name)] or [getattr(node, "name", "")]
            found |= dict.fromkeys(names, statement)
    return found


def globals_of(code):
    """The names that a statement looks up outside of its functions."""
    own = {x.argval for x in dis.get_instructions(code) if x.opname in ("LOAD_NAME", "LOAD_GLOBAL")}
    return own.union(*(globals_of(x) for x in code.co_consts if isinstance(x, types.CodeType)))


def is_kernel(node):
    """Whether a statement is a function below ``cuda.jit``, and no device function."""
    for decorator in getattr(node, "decorator_list", []):
        call = decorator if isinstance(decorator, ast.Call) else ast.Call(decorator, [], [])
        if ast.unparse(call.func) == "cuda.jit":
            return all(keyword.arg != "device" for keyword in call.keywords)
    return False


def needed(name, known):
    """The statement of a name, and those of all that it needs, by name."""
    reached, waiting = {}, [name]
    while waiting:
        if (x := waiting.pop()) in known and x not in reached:
            reached[x] = known[x]
            waiting += globals_of(compile(known[x].text, x, "exec"))
    return reached


def kernels_of(page, text):
    """The kernels of a text at its outermost level."""
    known, kernels = statements(text), []
    for name in (node.name for node in ast.parse(text).body if is_kernel(node)):
        rest = [x for x in sorted(needed(name, known).values()) if x.text != REFOPT]
        body = "\n\n\n".join(dict.fromkeys(x.text for x in rest))
        kernels.append(Pasted(page, name, f"{body}\n", frozenset(x.module for x in rest) - {"", "math", "numpy"}))
    return kernels


def texts():
    """The Python of each page; ladders and solutions have the names that their functions know their modules by."""
    found = {}
    for module in pkgutil.iter_modules(ladder.__path__, f"{ladder.__name__}."):
        found[module.name] = Path(importlib.import_module(module.name).__file__).read_text()
    found |= {f"solutions.{path.stem}": path.read_text() for path in sorted(SOLUTIONS.glob("[0-9]*.py"))}
    for name in NOTEBOOKS:
        found[name] = "\n\n\n".join(map(cells.python, cells.of(ROOT / "notebooks" / f"{name}.ipynb")))
    for name in ("own-kernels", "read-a-kernel"):
        found[name] = "\n\n\n".join(text for language, text in page_code.blocks(name) if language == "python")
    return found


TEXTS = texts()
KERNELS = {(x.page, x.name): x for page, text in TEXTS.items() for x in kernels_of(page, text)}
STOCK = {key: x for key, x in KERNELS.items() if not x.modules}
# Of each kind: of elements, of a block's shared memory, by shuffles, of pages that are right and that are not.
OFTEN = "adam_1", "join_3", "add_up", "sum_rows", "neighbours", "careless_ema"
each_kernel = pytest.mark.parametrize("key", [
    pytest.param(key, id=f"{key[0].rpartition('.')[2]}-{key[1]}", marks=() if key[1] in OFTEN else pytest.mark.slow)
    for key in STOCK])


# What they are launched with.


def dyadic(seed, sizes):
    """Parameters, gradients, and moments of which LAMB by DYADIC makes numbers of few bits, so that sums are exact."""
    rng = np.random.default_rng(seed)
    rows = []
    for n in sizes:
        root = rng.choice([1, 3, 7], n)  # of the new second moment
        p, m, g = rng.integers(-4, 5, n), rng.integers(-4, 5, n), rng.integers(-root, root + 1)
        rows.append([x.astype(np.float32) for x in (p, g, m, 2 * root**2 - g**2)])
    return [list(column) for column in zip(*rows, strict=True)]


DYADIC = tuple(map(np.float32, (0.1, 0.5, 0.5, 2, 0.5, 0.5, 0.75)))
SIZES = [1, 0, 300, 2100]  # of the tiles of three, one has no neighbour


def numbers_of(machine, name, rung, exact):
    """Arguments of a ladder's rung, with sums that are exact or any."""
    if name == "adam":
        return *placed(machine, adam_lists(SIZES[:3])), NUMBERS
    if name == "global_norm":
        grads = dyadic(1, SIZES)[1] if exact else normal(1, SIZES)
        return *placed(machine, [grads]), machine.to_device(np.zeros(2, np.float32)), CLIP
    if name == "matmul":
        return test_ladder_matmul.arguments(machine, rung, [(8, 40)])
    row = LADDERS[name]
    lists = dyadic(1, SIZES)[: len(row.slots)] if exact else row.lists(SIZES)
    numbers = tuple(map(np.float32, row.numbers.values()))
    return *placed(machine, lists), DYADIC if exact and name == "lamb" else numbers


def launch_ladders(machine):
    for page in dict.fromkeys(page for page, _ in STOCK if page.startswith(ladder.__name__)):
        for rung, make in importlib.import_module(page).RUNGS.items():
            for exact in (False, True):
                # Kept until they are launched: some launches know them by their addresses alone.
                given = numbers_of(machine, page.rpartition(".")[2], rung, exact)
                launches = make(*given)
                if not any("cuda.atomic.add" in by_name(launch) for launch in launches):
                    break
            for launch in launches:
                launch()


def by_name(launch):
    """The text of a launch's kernel, if it is one of the page's."""
    function = launch.kernel.function
    key = function.__module__, function.__name__
    return KERNELS[key].text if key in KERNELS else ""


def launch_others(machine, folder):
    """Kernels of notebooks and pages, each by two warps on arrays that are long enough for four elements a thread."""
    for (page, _), pasted in STOCK.items():
        if "." not in page:
            kernel = pasted.below(REFOPT, folder)
            names = kernel.function.__code__.co_varnames[: kernel.function.__code__.co_argcount]
            arrays = (np.linspace(-3, 5, 256, dtype=np.float32) for _ in names)
            args = [machine.to_device(x) if f"{name}[" in pasted.text else x[7]
                    for name, x in zip(names, arrays, strict=True)]
            kernel[1, 64](*args)


def launch_solutions():
    from refopt_exercises import solution
    from refopt_exercises.arguments import copied, on_device

    for page in dict.fromkeys(page for page, _ in STOCK if page.startswith("solutions.")):
        exercise, answer, _ = solution.load(page.removeprefix("solutions."))
        for args in exercise.cases.values():
            exercise.launch(answer, *on_device(copied(args)))


@pytest.fixture(scope="module")
def signatures(tmp_path_factory):
    """Of the kernels of ladders and solutions, as they are launched, and of those of a notebook or a page."""
    found = {}

    def call(launch, stream=0):
        function = launch.kernel.function
        if not launch.kernel.contract:  # adam_0 has the name of adam_1
            found.setdefault((function.__module__, function.__name__), signature_of(launch.args))

    with gpu.use("executor") as machine, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda.Launch, "__call__", call)
        launch_ladders(machine)
        launch_solutions()
        launch_others(machine, tmp_path_factory.mktemp("refopt"))
    return found


# Which they are.


def of_parts(page):
    """Whether a text imports what stock Numba does not have."""
    return any(x.module in PARTS for x in statements(TEXTS[page]).values())


def test_what_stock_numba_does_not_have():
    """What loads by address or is made of parts, and nothing else: of a ladder, what takes tensors from a table."""
    assert {module for x in KERNELS.values() for module in x.modules} <= PARTS
    assert {page for page, _ in KERNELS.keys() - STOCK.keys()} <= set(filter(of_parts, TEXTS))
    assert not [page for page, _ in KERNELS.keys() - STOCK.keys() if page in NOTEBOOKS]
    names = {name for page, name in KERNELS if page.startswith(ladder.__name__)}
    stock = {name for page, name in STOCK if page.startswith(ladder.__name__)}
    of_one = {name for name in names if re.match(r"(adam|norm|lars|lamb)_[012](_|$)|finish_", name)}
    assert stock >= of_one | {"join_2", "join_3"}


def test_the_exercises_say_which():
    text = (exercises.FOLDER / "exercises" / "README.md").read_text()
    (listed,) = re.findall(r"Exercises ([^.]*)\s+need\s+refopt's", text)
    pages = [page for page in TEXTS if page.startswith("solutions.") and of_parts(page)]
    assert [int(re.findall(r"\d+", page)[0]) for page in pages] == list(map(int, re.findall(r"\d+", listed)))


# What Numba makes of them.


def opcodes(ptx):
    """How many there are of each, a fused multiply-add counted as a product and a sum.

    An operation that must not be contracted has ``.rn``; one that may be has none, and rounds to nearest, too.
    """
    found = Counter()
    for opcode in instructions(ptx):
        operation, *_, kind = opcode.split(".")
        names = ("mul", "add") if operation == "fma" else (operation,)
        rounded = operation in ("fma", "add", "sub", "mul") and ".rn." in opcode
        found.update(f"{name}.{kind}" for name in names) if rounded else found.update([opcode])
    return found


def stock_ptx(kernel, signature, capability, monkeypatch):
    """What Numba compiles; a device function asks for a GPU, only to know which one it is."""
    from numba import cuda as numba_cuda
    from numba.cuda import dispatcher

    from refopt.gpu.by_numba import types_of

    monkeypatch.setattr(dispatcher, "get_current_device", lambda: types.SimpleNamespace(compute_capability=capability))
    return numba_cuda.compile_ptx(kernel.py_func, types_of(signature), cc=capability)[0]


@pytest.mark.parametrize("capability", [(7, 5), pytest.param((9, 0), marks=pytest.mark.slow)], ids=dotted)
@each_kernel
def test_ptx_differs_by_contraction_alone(key, capability, signatures, monkeypatch, tmp_path):
    needs.compiler()
    exact = STOCK[key].below(REFOPT, tmp_path).ptx(signatures[key])
    assert not any(x.startswith("fma") or re.match(r"(add|sub|mul)\.f32", x) for x in instructions(exact))
    ptx = stock_ptx(STOCK[key].below(NUMBA, tmp_path), signatures[key], capability, monkeypatch)
    assert opcodes(ptx) == opcodes(exact)
    assert "sqrt" not in STOCK[key].text or "sqrt.rn.f32" in ptx
    if "." in key[0]:  # a page shows what goes wrong
        assert ".f64" not in ptx


def test_numba_contracts(signatures, monkeypatch, tmp_path):
    """Of the first rung, by FMAs, and by leaving the rest to the assembler. adam_0 is that, opcode by opcode."""
    needs.compiler()
    key = adam.__name__, "adam_1"
    ptx = instructions(stock_ptx(STOCK[key].below(NUMBA, tmp_path), signatures[key], (9, 0), monkeypatch))
    assert ptx.count("fma.rn.f32") == 2 and "mul.f32" in ptx and ptx == instructions(adam.adam_0.ptx(signatures[key]))
