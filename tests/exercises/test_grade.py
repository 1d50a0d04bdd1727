"""Grades of a class: the answer counts, judged by the solution's cases, each notebook in a process of its own."""

import json

import pytest
from refopt_exercises import __main__ as command
from refopt_exercises import generate, grade, solution

NAME = "01_guard_the_tail"
STUB, SOLVED = (generate.notebook(NAME, solved) for solved in (False, True))
TAMPERED = STUB.replace("out[...] = k * x", "pass")  # a specification that the stub fulfils


@pytest.fixture
def learner(tmp_path):
    def write(text, who="ada", name=NAME):
        path = tmp_path / "class" / who / generate.path(name).name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(("text", "words"), [
    (SOLVED, "Right."), (STUB, "No thread has written anything: fill in the lines at FILL ME IN."),
    (TAMPERED, "No thread has written anything"), (SOLVED.replace("def scale", "def other"), "does not define 'scale'"),
    (SOLVED.replace("import numpy as np", "import nobody"), "ModuleNotFoundError: No module named 'nobody'")])
def test_the_answer_counts(text, words, learner):
    assert text != STUB or "FILL ME IN" in text
    found = grade.judge(NAME, learner(text))
    assert found.ok == (words == "Right.") and words in found.words


def test_lines_of_ipython_are_left_out(learner):
    cells = json.loads(SOLVED)
    code = next(cell for cell in cells["cells"] if cell["cell_type"] == "code")
    code["source"] = ["%matplotlib inline\n", "!ls\n", *code["source"]]
    assert grade.judge(NAME, learner(json.dumps(cells))).ok


def test_a_class_has_a_table(learner, monkeypatch, capsys):
    """A line for each learner, a column for each exercise that anyone has; what is wrong stands below."""
    folder = learner(SOLVED).parent.parent
    learner(STUB, "grace")
    learner(generate.notebook("03_grid_stride", solved=True), "grace", "03_grid_stride")
    monkeypatch.setattr(grade, "apart", grade.judge)
    assert command.main(["grade", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "       01     03     right", "ada    right  -      1 of 2", "grace  wrong  right  1 of 2", "",
        "grace, 01: No thread has written anything: fill in the lines at FILL ME IN."]


def test_every_learner_and_every_notebook_is_told(learner, monkeypatch, capsys):
    """Whatever a notebook is called; those of no exercise are named, and learners without one have a row."""
    path = learner(SOLVED)
    path.rename(path.with_name("mine (1).ipynb"))
    other = learner("{}", "grace")
    (path.parent.parent / "alan").mkdir()
    (path.parent.parent / ".ipynb_checkpoints").mkdir()
    monkeypatch.setattr(grade, "apart", grade.judge)
    assert command.main(["grade", str(path.parent.parent)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "       01     right", "ada    right  1 of 1", "alan   -      0 of 1", "grace  -      0 of 1",
        f"{other}: not graded, since it is of no exercise"]


def test_the_words_of_a_grade_say_what_is_wrong(learner):
    text = STUB.replace("# FILL ME IN, about 2 lines", "out[i] = k * x[i]")
    assert text != STUB
    words = grade.judge(NAME, learner(text)).words
    assert words.startswith("Case: 72 elements, 3 blocks. OutOfBounds: index 72 is out of bounds")


def test_notebooks_run_apart_and_not_forever(learner, monkeypatch):
    """What a notebook prints, or an exit in it, does not reach the table."""
    monkeypatch.setenv("PYTHONPATH", ":".join([str(generate.FOLDER.parent), str(generate.FOLDER.parents[1])]))
    leaving = SOLVED.replace("import numpy as np", "print('Right.'); raise SystemExit(3)")
    assert grade.apart(NAME, learner(leaving)) == (False, "exit code 3")
    assert grade.apart(NAME, learner(SOLVED), seconds=0.01) == (False, "It took more than 0.01 seconds.")


def test_folders_without_an_answer_are_refused(learner, tmp_path, capsys):
    assert command.main(["grade", str(tmp_path)]) == 2 and "expected notebooks such as" in capsys.readouterr().err
    path = learner(STUB)
    path.with_name("01-copy.ipynb").write_text(STUB)
    assert command.main(["grade", str(path.parent)]) == 2
    said = "expected one notebook of exercise 01, got 01-copy.ipynb and 01-guard-the-tail.ipynb"
    assert said in capsys.readouterr().err
    assert command.main(["grade", str(tmp_path / "gone")]) == 2 and "No such file" in capsys.readouterr().err
    assert command.main(["grade"]) == 2 and "python -m refopt_exercises" in capsys.readouterr().err
    assert solution.names()
