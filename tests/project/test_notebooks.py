"""The notebooks run from top to bottom, alone with the wheel, are short, and are committed as they ran."""

import ast
import asyncio
import json
import linecache
import os
import re
import subprocess
import sys
from pathlib import Path

import exercises
import pytest
import wheels

from benchmarks.record import ROOT

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
EXERCISES = sorted((FOLDER / "exercises").glob("*.ipynb"))
OF_HARNESS = [path for path in NOTEBOOKS if "figure(" in path.read_text()]  # which takes an alternative text
MAX_LINES = 20
MOST, MOST_OF_A_SESSION = 4000, 3500  # words of a notebook, and of one that a session of the course reads
# The others run in make test-long, and where the site is built.
IN_MAKE_TEST = {"7-what-goes-wrong", "9-a-step-as-a-program", "11-fused-all-reduce"}
OF_PEERS = {"15-the-oracle", "16-in-pytorchs-step"}  # run by tests/peers/test_notebook.py
# Hundreds of steps of a training show by their losses what twenty show of the code, and so do fewer elements.
SIZES = "SIZES = [3000, 64, 64, 1500, 1, 0, 4100, 10]", "SIZES = [1100, 64, 64, 30, 1, 0, 300, 10]"
FEWER = {"3a-lars-in-two-launches": [SIZES], "3c-forms-of-lars": [SIZES], "3d-a-race-and-a-bias": [SIZES],
         "4-momentum-and-adam": [("name, steps=200,", "name, steps=20,")],
         "4c-compare-bits": [("SIZES = [3000, 64, 1500, 1, 0, 2048, 10]", "SIZES = [300, 64, 30, 1, 0, 1040, 10]")],
         "5-adamw-lamb-and-norms": [("STEPS = 0.01, 0.1, 600", "STEPS = 0.01, 0.1, 60")],
         "5a-lamb-ladder": [SIZES], "6-mixed-precision": [("optimizer, steps=150,", "optimizer, steps=20,")]}
# What a notebook may import: what the wheel has, what `.[notebooks]` installs, and what some notebooks are about.
SHIPPED = {"refopt", "refopt_lecture", "refopt_exercises"}
INSTALLED = {"numpy", "matplotlib", "ml_dtypes", "IPython", "sklearn"}
ABOUT = {"0-start-here": {"torch"}, "15-the-oracle": {"torch", "optax", "timm"}, "16-in-pytorchs-step": {"torch"}}


def read(path):
    nbformat = pytest.importorskip("nbformat")  # here, since it takes seconds to import
    return nbformat.read(path, as_version=4)


def cells_of(path):
    return json.loads(path.read_text())["cells"]


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def shown(output):
    """The text of an output; of a table, that of its Markdown."""
    data = output.get("data", {})
    return "".join(data.get("text/markdown") or output.get("text") or data.get("text/plain") or [])


def words(cells):
    """In text, code and outputs, the sources that these quote counted."""
    texts = ["".join(cell["source"]) for cell in cells]
    return sum(len(x.split()) for x in [*texts, *(shown(o) for cell in cells for o in cell.get("outputs", []))])


def imported(path):
    """The libraries that the code cells of a notebook import."""
    assert exercises.FOLDER == FOLDER  # which is on the path
    from refopt_exercises import cells

    found = set()
    for node in (node for text in cells.of(path) for node in ast.walk(ast.parse(cells.python(text)))):
        if isinstance(node, ast.Import):
            found |= {x.name.partition(".")[0] for x in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found - sys.stdlib_module_names


def readings():
    """The notebooks that the sessions of the course read."""
    course = (ROOT / "docs" / "course.md").read_text()
    return re.findall(r"\*\*Reading\*\*: \[[^]]*\]\(\.\./notebooks/([\w-]+)\.ipynb\)", course)


RUN = [pytest.param(x, id=x.stem, marks=[pytest.mark.slow] * (x.stem not in IN_MAKE_TEST))
       for x in NOTEBOOKS if x.stem not in OF_PEERS]


@pytest.fixture(scope="module")
def kernel():
    """One for all, which imports what they use once."""
    manager = pytest.importorskip("jupyter_client").AsyncKernelManager(kernel_name="python3")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [path for path in paths if Path(path).name != "tests"]  # whose comm is another than Jupyter's
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(others))
        yield manager
    asyncio.run(manager.shutdown_kernel(now=True))


def run(notebook, folder, **options):
    nbclient = pytest.importorskip("nbclient")
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}, **options).execute()


@pytest.mark.parametrize("path", RUN)
def test_runs(path, kernel):
    notebook = read(path)
    for old, new in FEWER.get(path.stem, ()):
        (cell,) = [cell for cell in notebook.cells if old in cell.source]
        cell.source = cell.source.replace(old, new)
    notebook.cells.insert(0, pytest.importorskip("nbformat").v4.new_code_cell("%reset -f"))
    run(notebook, FOLDER, km=kernel)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, unpacked: first on the path of kernels that start meanwhile."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = wheels.build(folder)
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", target, wheel], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(target))
        yield target


@pytest.mark.slow
@pytest.mark.parametrize("path", [x for x in (*NOTEBOOKS, *EXERCISES) if x.stem not in OF_PEERS], ids=lambda x: x.stem)
def test_runs_alone_with_the_wheel(path, installed, tmp_path):
    """In an empty folder, without the clone, which an editable installation puts on the path."""
    notebook, cell = read(path), pytest.importorskip("nbformat").v4.new_code_cell
    clone = f"import sys\nsys.path[:] = [x for x in sys.path if x not in {(str(ROOT), str(FOLDER))}]"
    notebook.cells.insert(0, cell(clone))
    notebook.cells.append(cell(f"import refopt\nassert refopt.__file__.startswith({str(installed)!r})"))
    run(notebook, tmp_path, kernel_name="python3")


@pytest.mark.parametrize("path", [*NOTEBOOKS, *EXERCISES], ids=lambda path: path.stem)
def test_imports_what_ships(path):
    assert imported(path) <= SHIPPED | INSTALLED | ABOUT.get(path.stem, set())
    sources = ["".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert not [x for x in sources if re.search(r"(?<!refopt\.)__file__|cwd\(|\.\./", x)]  # the clone is not there


def test_eight_sessions_read_a_notebook_each():
    stems = {path.stem for path in NOTEBOOKS}
    assert len(readings()) == len(set(readings()) & stems) == 8


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_short(path):
    most = MOST_OF_A_SESSION if path.stem in readings() else MOST
    assert words(cells_of(path)) <= most


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_committed_as_it_ran_in_short_cells(path):
    cells = code_cells(path)
    assert cells and [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert outputs
    assert not [cell.source for cell in cells if cell.source.count("\n") >= MAX_LINES]


@pytest.mark.parametrize("path", OF_HARNESS, ids=lambda path: path.stem)
def test_figures_have_words_for_those_who_do_not_see_them(path):
    outputs = [output for cell in code_cells(path) for output in cell.outputs if "image/png" in output.get("data", {})]
    assert not [output for output in outputs if len(output.metadata.get("image/png", {}).get("alt", "")) < 40]


def test_text_in_formulas_is_as_it_is_shown():
    """MathJax shows the backslash of an escape in \\text."""
    pages = [*NOTEBOOKS, *EXERCISES, *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    sources = {path: ["".join(cell["source"]) for cell in cells_of(path)] if path.suffix == ".ipynb"
               else [path.read_text()] for path in pages}
    assert not [(path.stem, found) for path, texts in sources.items() for text in texts
                for found in re.findall(r"\\text\{[^}]*\\_[^}]*\}", text)]


def test_links_of_notebooks_lead_to_notebooks():
    """Those that name another notebook in the folder."""
    gone = {(path.stem, link) for path in NOTEBOOKS for link in re.findall(r"\]\(([\w-]+\.ipynb)\)", path.read_text())
            if not (FOLDER / link).exists()}
    assert not gone


FILLED = [
    ("        # FILL ME IN (line 1)", "        cuda.syncthreads()"),
    ("rate[0] = lr  # CHANGE ME (line 2)", "rate[0] = lr"),
    ("v[i] = v[i]  # CHANGE ME (line 3)", "v[i] = g[i]")]


@pytest.mark.parametrize("filled", [FILLED[:2], FILLED[2:]], ids=["race mended", "race left"])
def test_the_first_notebook_writes_the_lines_that_are_wrong_or_missing(filled, capsys, monkeypatch):
    """Whatever the reader has filled in by then."""
    code = ["".join(cell["source"]) for cell in cells_of(FOLDER / "0-start-here.ipynb") if cell["cell_type"] == "code"]
    text = "\n\n".join(code[1 : [x.startswith("if not passed") for x in code].index(True) + 1])
    text = re.sub(r"(?m)^from (IPython|matplotlib).*$", "", text)
    for old, new in filled:
        assert text.count(old) == 1
        text = text.replace(old, new)
    monkeypatch.setitem(linecache.cache, "notebook", (len(text), None, text.splitlines(keepends=True), "notebook"))
    exec(compile(text, "notebook", "exec"), {"re": re})
    first, last = re.findall("^(?:Not yet|Right).*", capsys.readouterr().out, re.MULTILINE)
    assert ("look at lines 2 and 3" in first) == (filled == FILLED[:2])
    assert last == "Right: no race, and equal bit for bit."
