"""The tool that plants changes: what it changes, which tests it chooses, and that it tells a kill from a survivor."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from mutation.covered import LEFT_OUT, collected
from mutation.edits import Edit, edits
from mutation.report import rate
from mutation.sample import PARTS, again, key_of, part_of, sample
from mutation.sample import changed as changed_since

ROOT = Path(__file__).parents[2]


def changed(source):
    """Each kind of change with the text that it leads to."""
    return {(edit.kind, edit.applied(source)) for edit in edits("refopt/x.py", source)}


@pytest.mark.parametrize(("source", "kind", "expected"), [
    ("a = b + c\n", "operator", {"a = b - c\n"}),
    ("a = (b + c) * d\n", "operator", {"a = (b + c) / d\n", "a = (b - c) * d\n"}),
    ("a = b % c // d\n", "operator", {"a = b % c * d\n", "a = b * c // d\n"}),
    ("a = b < c\n", "boundary", {"a = b <= c\n"}), ("a = b < c\n", "comparison", {"a = b >= c\n"}),
    ("a = b is None\n", "comparison", {"a = b is not None\n"}), ("a = b and c\n", "and to or", {"a = b or c\n"}),
    ("a = not b\n", "sign dropped", {"a = b\n"}), ("a = -b\n", "sign dropped", {"a = b\n"}),
    ("a = 3\n", "constant", {"a = 4\n", "a = 2\n"}), ("a = 0\n", "constant", {"a = 1\n"}),
    ("a = 0.5\n", "constant", {"a = 0.625\n"}), ("a = True\n", "constant", {"a = False\n"}),
    ("a = f(b, c)\n", "arguments swapped", {"a = f(c, b)\n"}),
    ("a = f((b + c), d)\n", "arguments swapped", {"a = f(d, (b + c))\n"}),
    ("a = b not in c\n", "comparison", {"a = b in c\n"}), ("a[0] = b\n", "statement dropped", {"pass\n"}),
    ("a += b\n", "statement dropped", {"pass\n"}), ("f(a)\n", "statement dropped", {"pass\n"}),
    ("for a in b:\n    continue\n", "statement dropped", {"for a in b:\n    pass\n"}),
    ("if a:\n    b = 'ü', c if d else e\n", "condition negated",
     {"if not (a):\n    b = 'ü', c if d else e\n", "if a:\n    b = 'ü', c if (not (d)) else e\n"}),
    ("def f(a: int = 1) -> int:\n    return a\n", "constant",
     {"def f(a: int = 2) -> int:\n    return a\n", "def f(a: int = 0) -> int:\n    return a\n"}),
    ("def f(a):\n    return a\n", "result dropped", {"def f(a):\n    return None\n"}),
    ("def f(a):\n    return False\n", "constant", {"def f(a):\n    return True\n"}),
    ("def f(a):\n    return False\n", "result dropped", set())])
def test_changes_of_each_kind(source, kind, expected):
    assert {text for found, text in changed(source) if found == kind} == expected


def test_changes_in_changed_lines_alone(tmp_path):
    """Those of a new file, of a changed line and of a statement that goes on in one; none where lines were removed."""
    def git(*args):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], cwd=tmp_path, check=True)

    package = tmp_path / "refopt"
    package.mkdir()
    (package / "old.py").write_text("a = 1\nb = 2\nc = (3 +\n     4)\nd = 5\ne = 6\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    (package / "old.py").write_text("a = 1\nb = 7\nc = (3 +\n     8)\ne = 6\n")
    (package / "new.py").write_text("f = 9\n")
    git("add", "--intent-to-add", ".")
    files = "refopt/old.py", "refopt/new.py"
    found = [edit for file in files for edit in edits(file, (tmp_path / file).read_text())]
    scopes = {edit.scope for edit in changed_since(tmp_path, found, "HEAD")}
    assert scopes == {"b", "c", "f"} and {edit.scope for edit in found} == {"a", "b", "c", "e", "f"}


@pytest.mark.parametrize("source", ['"""A module."""\n', "import a.b\n", "a: int\n", "__all__ = [1, 2]\n",
                                    "raise ValueError(1, 2)\n", "def f():\n    return None\n",
                                    "@dataclass(frozen=True)\nclass A:\n    b: int\n",
                                    "if TYPE_CHECKING:\n    a = 1\n", "a = f'{b + 1}'\n", "a = b(strict=True)\n"])
def test_nothing_to_change(source):
    assert changed(source) == set()


def test_a_change_of_text_that_has_moved_is_refused():
    (edit,) = edits("refopt/x.py", "a = b + c\n")
    with pytest.raises(ValueError, match="no longer stands"):
        edit.applied("\na = b + c\n")


def test_a_sample_is_spread_over_the_parts_and_follows_its_seed():
    files = ["refopt/cpu/adam.py", "refopt/gpu/rules/adam.py", "refopt/gpu/tables.py", "refopt/program/passes/flat.py"]
    found = [edit for file in files for edit in edits(file, (ROOT / file).read_text())]
    drawn = sample(ROOT, found, 1, 40)
    assert drawn == sample(ROOT, found, 1, 40) != sample(ROOT, found, 2, 40)
    assert {part_of(edit.file) for edit in drawn} == {"cpu", "gpu rules", "tiles, tables", "passes"}


def test_each_file_of_the_package_belongs_to_a_part():
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "refopt").rglob("*.py")]
    assert {part_of(file) for file in files} == set(PARTS)


def test_survivors_are_tried_again_where_they_were(tmp_path):
    """Of changes alike, the one at that line or the nearest; of some parts alone, if asked for."""
    found = edits("refopt/cpu/x.py", "def f(a):\n    b = a + 1\n\n\n    c = b + 1\n    return c + 1\n")
    last = next(edit for edit in found if edit.kind == "operator" and edit.lines[0] == 6)
    rows = [{**last.key(), "part": "cpu", "verdict": "survived", "line": 7, "tests": 1, "equivalent because": ""}]
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"not killed": rows}))
    assert again(found, path) == again(found, path, ["cpu"]) == [last] and not again(found, path, ["gpu"])


def test_all_cases_of_a_file():
    ids = collected(ROOT, ["tests/simt/test_docs.py"])
    assert "tests/simt/test_docs.py::test_a_page_with_a_session[profile]" in ids and len(ids) == len({*ids}) > 2
    with pytest.raises(ValueError, match=r"(?s)expected tests, got tests/simt/test_no\.py: .*not found"):
        collected(ROOT, ["tests/simt/test_no.py"])


def test_changes_known_to_change_nothing_say_why():
    entries = json.loads((ROOT / "tests" / "mutation" / "equivalent.json").read_text())
    keys = {key_of(edit.key()) for file in {entry["file"] for entry in entries}
            for edit in edits(file, (ROOT / file).read_text())}
    for entry in entries:
        assert len(entry.pop("reason")) > 20
        assert key_of(entry) in keys, entry


def test_the_rate_leaves_out_what_ran_out_of_time_and_what_is_equivalent():
    assert rate(Counter(killed=3, survived=1)) == 0.75
    assert rate(Counter({"killed": 3, "uncovered": 1, "timed out": 5, "equivalent": 7})) == 0.75


PROJECT = {"refopt/__init__.py": "",
           "refopt/x.py": "def seen(a):\n    return a + 1\n\n\ndef unseen(a):\n    return a - 1\n\n\ndef hangs(a):\n"
           "    while a > 0:\n        a -= 1\n    return a\n",
           "tests/test_x.py": "import pytest\nfrom refopt import x\n\n\n@pytest.mark.parametrize('a', [None, 1])\n"
           "def test_seen(a):\n    assert a is None or x.seen(1) == 2\n\n\n"
           "def test_unseen():\n    x.unseen(1)\n\n\ndef test_hangs():\n    assert x.hangs(3) == 0\n",
           "refopt/cli/pytest_plugin.py": "",  # which pytest loads, since refopt is installed
           "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['gpu: none', 'slow: none']\n"}

SCRIPT = """
import json, sys
from pathlib import Path
import pytest  # so that no trial spends its time on that
from mutation.edits import edits
from mutation import trial

root, folder = map(Path, sys.argv[1:3])
limits = {"seen": 200, "unseen": 200, "hangs": 3}
kinds = {"seen": "operator", "unseen": "operator", "hangs": "statement dropped"}
for edit in edits("refopt/x.py", (root / "refopt/x.py").read_text()):
    if kinds[edit.scope] != edit.kind:
        continue
    folder.joinpath(edit.scope).mkdir()
    test = f"tests/test_x.py::test_{edit.scope}{'[None]' * (edit.scope == 'seen')}"
    bench = trial.Bench(root, folder / edit.scope, limits[edit.scope], more=0)  # one case that was not measured
    outcome = bench.trial(edit, [test], {test: sys.argv[3]})
    print(json.dumps([edit.scope, edit.kind, edit.new, outcome.verdict, outcome.by]))
"""


@pytest.mark.slow  # a clock
@pytest.mark.parametrize("elsewhere", [False, True])
def test_trials_tell_killed_survived_and_timed_out(elsewhere, tmp_path):
    """In forks, and by the interpreter of another environment; by a case that was not measured, too."""
    python = tmp_path / "python" if elsewhere else Path(sys.executable)
    if elsewhere:
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
    for name, text in PROJECT.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    (tmp_path / "copy").mkdir()
    command = [sys.executable, "-c", SCRIPT, tmp_path / "root", tmp_path / "copy", python]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows == [["seen", "operator", "-", "killed", "tests/test_x.py::test_seen[1]"],
                    ["unseen", "operator", "+", "survived", ""],
                    ["hangs", "statement dropped", "pass", "timed out", ""]]
    assert (tmp_path / "copy" / "hangs" / "refopt" / "x.py").read_text() == PROJECT["refopt/x.py"]


def test_the_fastest_tests_of_a_line_come_first_wherever_it_has_moved(tmp_path):
    pytest.importorskip("coverage")
    from coverage import CoverageData
    from mutation.covered import Covered

    folder = tmp_path / "coverage" / "1"
    for at, text in ((folder, "a\nb\nc\nd\n\n\n\n\ne\n"), (tmp_path, "new\na\nb\nc_changed\nd\n\n\n\n\ne\n")):
        (at / "refopt").mkdir(parents=True)
        (at / "refopt" / "x.py").write_text(text)
        (at / "refopt" / "y.py").write_text("")
    data = CoverageData(str(folder / "coverage"))
    lines = {"t.py::broad[1]|run": [1, 2, 3, 4], "t.py::broad[2]|run": [1, 2, 3, 4], "t.py::near|run": [2, 3],
             "t.py::ranks (call)": [2], "": [9]}
    for context, ran in lines.items():
        data.set_context(context)
        data.add_lines({"refopt/x.py": ran})
    data.write()
    seconds = {"t.py::broad[1]": 3.0, "t.py::broad[2]": 0.5, "t.py::near": 1.0, "t.py::ranks": 0.75}
    (folder / "durations").write_text(json.dumps(seconds))
    (folder / "python").write_text("python3")
    covered = Covered(tmp_path, tmp_path / "coverage")
    assert covered.python == dict.fromkeys(seconds, "python3")

    def tests(line, budget, scope="", file="refopt/x.py"):
        return covered.tests(Edit(file, scope, "constant", (line, line), 0, 1, "0", "1"), budget)

    assert tests(3, 60) == ["t.py::broad[2]", "t.py::ranks", "t.py::near", "t.py::broad[1]"]
    assert tests(3, 1.3) == ["t.py::broad[2]", "t.py::ranks"] and tests(5, 0) == ["t.py::broad[2]"]
    assert set(tests(10, 60)) == set(covered.seconds)  # at import
    assert set(tests(4, 60)) == set(covered.seconds)  # new since then
    assert tests(10, 60, "NEAR") == ["t.py::near"]
    assert tests(1, 60, "d") == ["t.py::broad[2]", "t.py::broad[1]"]  # those of the line that has this name
    assert tests(1, 60, file="refopt/y.py") == []


@pytest.mark.slow  # a collection in a process of its own
def test_what_is_left_out_is_there():
    """pytest takes the id of a test that there is not without a word."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *LEFT_OUT]
    found = subprocess.run(command, cwd=ROOT, capture_output=True)
    assert found.returncode == 0, found.stdout.decode()
