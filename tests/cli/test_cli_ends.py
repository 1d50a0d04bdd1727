"""How the command ends: its status, one line and no traceback, no process and no file left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refopt import cli
from refopt.cli import check, commands, output

ROOT = Path(__file__).parents[2]
ALONE = ["verify", "--device", "executor", "--max-elements", "1", "--routine", "sgd", "--dtype", "fp32"]
QUICK = [*ALONE, "fp64"]  # by two processes, where there are processors for them
PATH = os.pathsep.join([str(ROOT), *sys.path])
COMMAND = [sys.executable, "-m", "refopt"]
FULL = Path("/dev/full")


def first_of(*rows):
    """Rows for parametrize: what the others show of further streams and signals is slow."""
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [pytest.param(*row, marks=[pytest.mark.slow] * (row is not rows[0])) for row in rows]


def env(**others):
    """With what pytest says of the running test, by which coverage.py knows it."""
    return os.environ | {"PYTHONPATH": PATH, "COLUMNS": "80"} | others


def run(*args, **options):
    settings = {"env": env(), "capture_output": True, "text": True, "timeout": 120, **options}
    return subprocess.run([*COMMAND, *map(str, args)], **settings)


def one_line(done, status):
    assert done.returncode == status, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("refopt: "), done.stderr
    return done.stderr


@pytest.mark.parametrize("args", [[], ["--help"], ["--version"], ["verify", "--help"], ["check", "--help"],
                                  ["show", "--help"], ["verfy"], ["verify", "--steps"], ["--json"],
                                  ["show", "adam", "--set", "a=b"], ["show", "adam", "--form", "separately"]])
def test_help_and_wrong_arguments(args, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, (out, err) = cli.main(args), capfd.readouterr()
    asked = {"--help", "--version"} & set(args)
    assert status == (0 if asked else 2) and bool(out) == bool(asked) and bool(err) != bool(asked)
    assert max(map(len, (out + err).splitlines())) <= 80 and "Traceback" not in err
    assert args or all(f"\n    {name} " in err for name in commands.parsers()[1]), "alone, it lists its commands"


def test_the_statuses_are_told(capfd):
    cli.main(["verify", "--help"])
    words = " ".join(capfd.readouterr().out.split())
    told = re.search(r"Exit status: (.*)", words)[1]
    assert [int(n) for n in re.findall(r"\d+", told)] == [
        output.EQUAL, output.DIFFERS, output.UNUSABLE, output.FAILED, output.INTERRUPTED, output.BROKEN_PIPE,
        output.TERMINATED]
    listed = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "command-line.md").read_text(), re.MULTILINE)
    assert [int(n) for n in listed] == [int(n) for n in re.findall(r"\d+", told)]


def test_defaults_are_what_help_says():
    actions = [action for _, parser in commands.parsers()[1].values() for action in parser._actions]
    said = [(action, found[1]) for action in actions if (found := re.search(r"default (\w+)", action.help or ""))]
    assert len(said) >= 8
    for action, text in said:
        first = action.default[0] if isinstance(action.default, list) else action.default
        assert first is None or str(first) == text, action.dest


@pytest.mark.parametrize(("path", "why"),
                         [(".", "Is a directory"),
                          ("", "expected the name of a file"), ("missing/report.json", "No such file or directory"),
                          ("missing/", "expected the name of a file"), ("file/report.json", "Not a directory"),
                          ("x" * 300, "File name too long"), ("/dev/full", "No space left on device")])
def test_a_report_that_cannot_be_written(tmp_path, path, why, capfd, monkeypatch):
    """Before any work is done, and nothing is left."""
    (tmp_path / "file").write_text("old")
    monkeypatch.chdir(tmp_path)
    status = cli.main(["verify", "--device", "executor", "--json", path])
    done = subprocess.CompletedProcess([], status, *capfd.readouterr())
    assert why in one_line(done, 2) and not done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "old"


MODULES_THAT_FAIL = {"raises.py": "import helps\n\nhelps.fails()\n", "helps.py": "def fails():\n    1 / 0\n",
                     "typo.py": "x = 1\ndef (:\n", "json.py": "step = 1\n"}


@pytest.mark.parametrize(("place", "why"), [
    ("raises.py", "ZeroDivisionError: division by zero (helps.py, line 2)"),
    ("raises", "ZeroDivisionError: division by zero (helps.py, line 2)"),
    ("no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ("typo.py", "SyntaxError: invalid syntax (typo.py, line 2)"), ("nowhere.py", "FileNotFoundError: no such file"),
    ("no:where.py", "FileNotFoundError: no such file")])
def test_where_an_import_has_failed(place, why, tmp_path, monkeypatch):
    """The last line of what was imported; none of the command's own, or of importlib's."""
    for name, text in MODULES_THAT_FAIL.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    with pytest.raises(check.Unusable) as raised:
        check.found(f"{place}:step")
    assert str(raised.value) == f"check: {place}: cannot be imported: {why}"
    assert check.found("json.py:step") == 1 and sys.modules["json"] is json, "a file takes no module's place"


def limited(nbytes):
    """A limit on the size of files, such as a disk that is nearly full."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


@pytest.mark.parametrize("args", [
    ("verify", "--device", "executor", "--json"), ("show", "adamw", "--out"),
    ("vectors", "sgd", "--examples", "1", "--to")],
    ids=lambda args: args[-1])
def test_no_room_for_a_file(tmp_path, args):
    file = tmp_path / "file.txt"
    file.write_text("old")
    done = run(*args, file, preexec_fn=lambda: limited(50_000), timeout=60)
    assert f"{args[-1]}: cannot write to '{file}': File too large" in one_line(done, 2) and not done.stdout
    assert [each.name for each in tmp_path.iterdir()] == ["file.txt"] and file.read_text() == "old"


def test_a_report_takes_the_place_of_an_old_one(tmp_path):
    """With its permissions, behind a link, whole; a pipe is written to, and so is a file that is open."""
    old, link = tmp_path / "old.json", tmp_path / "link.json"
    old.write_text("old")
    old.chmod(0o640)
    link.symlink_to(old)
    assert cli.main([*ALONE, "--json", str(link)]) == 0
    assert link.is_symlink() and json.loads(old.read_text())["ok"] and old.stat().st_mode & 0o777 == 0o640
    assert old.read_text().endswith("}\n")
    assert {file.name for file in tmp_path.iterdir()} == {"old.json", "link.json"}
    os.umask(mask := os.umask(0))
    assert cli.main([*ALONE, "--json", str(tmp_path / "new.json")]) == 0
    assert (tmp_path / "new.json").stat().st_mode & 0o777 == 0o666 & ~mask
    for folder in ("/dev/fd", "/proc/self/fd"):
        with open(tmp_path / "open.json", "w+") as file:
            assert cli.main([*ALONE, "--json", f"{folder}/{file.fileno()}"]) == 0
            assert json.loads(file.read())["ok"]
    read, write = os.pipe()
    assert cli.main([*ALONE, "--json", f"/dev/fd/{write}"]) == 0
    os.close(write)
    with open(read) as file:
        assert json.loads(file.read())["ok"]
    assert cli.main([*ALONE, "--json", os.devnull]) == 0 and not Path(os.devnull).is_file()


@pytest.mark.parametrize("args", first_of(QUICK, [*QUICK, "--json", "-"], ["verify", "--help"], ["--version"]))
def test_a_closed_pipe(args):
    """As ``refopt ... | head -1``, where what is printed first is lost, too: the status of SIGPIPE, without a word."""
    read, write = os.pipe()
    os.close(read)
    done = run(*args, stdout=write, capture_output=False, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def processes_of(group):
    """Those of a process group that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


ENDS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]


SIGNALS = first_of(*((*end, to_all) for to_all in (True, False) for end in ENDS))


@pytest.mark.parametrize(("signum", "status", "said", "to_all"), SIGNALS)
def test_a_signal_at_work(tmp_path, signum, status, said, to_all):
    """Ctrl-C goes to all processes of a terminal. Workers end, too, and an unfinished report is no report."""
    args = [*COMMAND, "verify", "--device", "executor", "--json", str(tmp_path / "report.json")]
    with subprocess.Popen(
        args, env=env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:
        process.stdout.readline()
        deadline = time.monotonic() + 20
        while not (there := len(processes_of(process.pid)) > (len(os.sched_getaffinity(0)) > 1)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.1)
        assert there
        (os.killpg if to_all else os.kill)(process.pid, signum)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (status, f"refopt: {said}\n")
    assert not processes_of(process.pid) and not list(tmp_path.iterdir())


@pytest.mark.slow  # a clock
def test_workers_end_with_their_parent():
    """However that ends."""
    args = [*COMMAND, "verify", "--device", "executor"]
    with subprocess.Popen(args, env=env(), stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        process.stdout.readline()
        time.sleep(1)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 20
        while (left := processes_of(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert not left


MODULES = "refopt.cli.verify", "numpy", "json", "traceback"
SIGNALS_AT = first_of(*((*end, module) for module in MODULES for end in ENDS))


@pytest.mark.parametrize(("signum", "status", "said", "module"), SIGNALS_AT)
def test_a_signal_during_import(tmp_path, module, signum, status, said):
    """Of whatever the command imports."""
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nclass Finder:\n"
                                               "    def find_spec(self, name, path=None, target=None):\n"
                                               f"        if name == {module!r}: os.kill(os.getpid(), {int(signum)})\n"
                                               "sys.meta_path.insert(0, Finder())\n")
    path = os.pathsep.join([str(tmp_path), PATH])
    done = run(*QUICK, env=env(PYTHONPATH=path))
    if module == "traceback" and done.returncode == 0:
        pytest.skip("is not imported")
    assert (done.returncode, done.stdout) == (status, "") and done.stderr == f"refopt: {said}\n"
