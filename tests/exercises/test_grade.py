"""Grades of a class: an answer is judged by its text; nothing that a notebook does in its own process counts."""

import csv
import json
import re

import pytest
from refopt_exercises import __main__ as command
from refopt_exercises import generate, grade, judge, solution

NAME, HOST = "01_guard_the_tail", "18_beat_the_bytes"
STUB, SOLVED = generate.code(NAME), [
    "import math, os\nZERO = math.floor(0.5)\nx = os.getcwd()",
    *(text.replace("if i < x.size", "if i < x.size + ZERO") for text in generate.code(NAME, solved=True))]
HOLE, LINE = "# FILL ME IN, about 2 lines", "out[i] = k * x[i]"
UNGUARDED = [text.replace(HOLE, LINE) for text in STUB]
UNREADABLE = [text.replace(HOLE, f"if i < x.size\n        {LINE}") for text in STUB[:2]]
STEP = "def step(p, g, v, scale, lr, mu):\n    {}\n"  # of exercise 18, as its launch calls it


def notebook(texts):
    return json.dumps({"cells": [{"cell_type": "code", "source": [text]} for text in texts]})


CHEATS = [
    ["from refopt_exercises import Exercise, verdict\nExercise.check = lambda *a: verdict.right('')", *STUB],
    ["import numpy, refopt_exercises.exercise as e\nnumpy.array_equal = lambda *a: True\n"
     "e.difference = e.witness.report = lambda *a: None", *UNGUARDED],
    [*STUB, "import os\nos.write(1, b'[true, \"Right.\"]')\nos._exit(0)"],
    [text.replace(HOLE, "spec.__globals__['exercise'].cases.clear()") for text in STUB]]
LEARNERS = {
    "ada": {NAME: SOLVED}, "alan": {NAME: [x.replace(LINE, "out[i] = k*x[i]  # mine") for x in SOLVED]},
    "barbara": {NAME: UNGUARDED, HOST: [generate.code(HOST)[0], "class A: pass\n" + STEP.format("A()")]},
    "grace": {"other": "{}"}, "hedy": {NAME: ["raise SystemExit(3)", *SOLVED]},
    "john": {NAME: SOLVED, "week 1/mine": SOLVED}, "ken": {NAME: ["exercise.check(mine)", *UNREADABLE]},
    "kurt": {NAME: '{"cells": [{"cell_type"'}, "linus": {NAME: ""},
    **{f"mallory {k}": {NAME: texts} for k, texts in enumerate(CHEATS, 1)}, "niklaus": {}}
NOTHING = "wrong: No thread has written anything: fill in the lines at FILL ME IN."
OUTSIDE = "Case: 72 elements, 3 blocks. OutOfBounds: index 72 is out of bounds for x"
NO_NOTEBOOK = "broken: 01_guard_the_tail.ipynb: expected a notebook, got JSONDecodeError: "
WORDS = {
    "barbara": f"wrong: {OUTSIDE}", "hedy": "broken: code cell 1 raises SystemExit: 3",
    "john": "twice: there are 2 notebooks: 01_guard_the_tail.ipynb, week 1/mine.ipynb",
    "ken": "broken: no cell defines scale; it checks mine; code cell 3, line 4: SyntaxError: expected ':'",
    "kurt": NO_NOTEBOOK, "linus": NO_NOTEBOOK, "mallory 1": NOTHING, "mallory 3": NOTHING,
    "mallory 2": f"wrong: {OUTSIDE}", "mallory 4": "wrong: An answer may not use `.__globals__`. line 4: spec"}


def test_a_class_with_cheats_and_broken_files(tmp_path, capsys):
    """Every learner has a row, every exercise that is not right a reason, and no cheat changes a verdict."""
    classroom = tmp_path / "class"
    for who, papers in LEARNERS.items():
        (classroom / who).mkdir(parents=True)
        for name, texts in papers.items():
            path = classroom / who / f"{name}.ipynb"
            path.parent.mkdir(exist_ok=True)
            path.write_text(texts if isinstance(texts, str) else notebook(texts))
    (classroom / "1.ipynb").write_text(notebook(SOLVED))
    (classroom / "niklaus" / "1.zip").touch()
    (classroom / ".ipynb_checkpoints").mkdir()
    files = tmp_path / "grades.csv", tmp_path / "grades.json"
    assert command.main(["grade", str(classroom), "--csv", str(files[0]), "--json", str(files[1])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and lines[-5:] == [
        "01, the same answer: ada; alan; hedy.", "01, the same answer: barbara; mallory 2.",
        "niklaus: no notebook, but 1.zip", "1.ipynb: not graded, since it is in no learner's folder",
        "grace/other.ipynb: not graded, since it is of no exercise"]
    rows = [line[9:].split() for line in lines[1 : 1 + len(LEARNERS)]]
    assert [row[0] for row in rows] == ["+=", "+=", "x=", ".", "!=", "2", "!", "!", "!", "x", "x=", "x", "x", "."]
    told = re.sub(r"\n +", " ", "\n".join(lines))
    assert rows[1][1:] == [".", "1"] and rows[2][1:] == ["x", "0"] and "18, wrong: An answer may not use `cl" in told
    assert not {who for who, words in WORDS.items() if f"\n{who}, 01, {words}" not in told}, told
    of_csv, of_json = list(csv.DictReader(files[0].open())), json.loads(files[1].read_text())
    assert [{**x, "same_as": "; ".join(x["same_as"])} for x in of_json] == of_csv and len(of_csv) == 2 * len(LEARNERS)
    bad = [".ipynb_checkpoints"], ["gone"], [".", "--csv", "gone/x"]
    assert [command.main(["grade", str(classroom / x), *options]) for x, *options in bad] == [2, 2, 2]
    assert "gone/x: expected a file in a folder that is there" in capsys.readouterr().err
    assert "A GPU says nothing here" in next(x["reason"] for x in of_json if x["learner"] == "barbara")


LOOK = """%matplotlib inline
import pathlib, sys, refopt, refopt_exercises
places = [*sys.path, *(pathlib.Path(x.__file__).parents[1] for x in (refopt, refopt_exercises))]
near = [pathlib.Path(x, y, "refopt_exercises", "solutions") for x in places for y in ("", "notebooks")]
assert not any(x.exists() for x in near)"""


@pytest.mark.parametrize(("texts", "seconds", "words"), [
    ([LOOK, "exercise.check(None)"], 99, ""),  # the second only judges
    (["import time; time.sleep(99)"], 0.5, "the notebook took more than 0.5 seconds"),
    (["import os; os._exit(3)"], 99, "the notebook's process ended with status 3")])
def test_a_notebook_runs_without_the_solutions_and_not_forever(texts, seconds, words, tmp_path):
    grade.copy_packages(tmp_path)
    assert grade.ran(texts, str(tmp_path), seconds) == words
    words = "The answer took more than 0.01 seconds."
    assert grade.judged(grade.Paper("ada", NAME, [], "", ""), 0.01)[2:4] == ("wrong", words)


@pytest.mark.parametrize("command_line", [["write"], ["grade", "."]])
def test_nothing_is_written_or_graded_without_the_solutions(command_line, monkeypatch, capsys):
    """In what learners get, `write` would empty the page and the scores."""
    monkeypatch.setattr(solution, "FOLDER", solution.FOLDER / "gone")
    monkeypatch.setattr(generate, "write", list)  # for the day that it is called
    assert command.main(command_line) == 2 and "expected the solutions, got none" in capsys.readouterr().err


REFUSED = [
    "open('x')", "eval('1')", "().__class__", "(p.x for p in ()).gi_frame", "np.save", "np.ma", "cuda.np", "print(np)",
    "cuda.atomic.operator", "p.copy_to_host", "p.x = 1", "cuda.jit('void()')", "exercise", "import os", "global p",
    "match p:\n        case int(__class__=c): pass", "with p: pass", "[x for x in p if type(x)]", "__builtins__"]


@pytest.mark.parametrize("body", REFUSED)
def test_an_answer_cannot_reach_its_judge(body):
    verdict = judge.judge(HOST, STEP.format(body))
    assert not verdict.ok and re.search("An answer may not use|name 'exercise' is not defined", verdict.text), verdict
