"""A test that all runs skip is named: reports of two runs, of which the second lacks nothing that the first lacks."""

import subprocess
import sys
from pathlib import Path

import pytest
import skipped

SUITE = {"test_peer.py": "import pytest\ndef test_one():\n    pytest.importorskip({!r})\ndef test_two(): pass\n",
         "test_module.py": "import pytest\npytest.importorskip({!r})\ndef test_three(): pass\n"}
SECONDS = {"none": ({"test_peer.py": "math", "test_module.py": "math"}, []),
           "a test": ({"test_peer.py": "no_such", "test_module.py": "math"}, ["test_peer.test_one"]),
           "a module": ({"test_peer.py": "math", "test_module.py": "no_such"}, ["test_module"]),
           "a module that is not run": ({"test_peer.py": "math"}, ["test_module"])}
RUNS = """
import os, sys, pytest
plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest"]
for folder in sys.argv[1:]:
    os.chdir(folder)
    pytest.main(["-q", *plugins, "--rootdir=.", "--junitxml=report.xml", "."])
    for name in "test_peer", "test_module":
        sys.modules.pop(name, None)  # those of the next run are others
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What pytest reports where one module or another is to be had: of a first run, which has none, and of others."""
    runs = {"first": dict.fromkeys(SUITE, "no_such")} | {name: had for name, (had, _) in SECONDS.items()}
    folders = {name: tmp_path_factory.mktemp("run") for name in runs}
    for name, had in runs.items():
        for file, module in had.items():
            (folders[name] / file).write_text(SUITE[file].format(module))
    subprocess.run([sys.executable, "-c", RUNS, *folders.values()], check=True, capture_output=True)
    return {name: str(folder / "report.xml") for name, folder in folders.items()}


@pytest.mark.parametrize("second", SECONDS)
def test_what_both_runs_skip_is_named(capsys, reports, second):
    named = SECONDS[second][1]
    status = skipped.main(reports["first"], reports[second])
    out = capsys.readouterr().out
    assert status == (1 if named else 0) and [line.split(": ")[1] for line in out.splitlines()] == named
    assert all("could not import 'no_such'" in line for line in out.splitlines())


def test_without_a_first_run(tmp_path, capsys):
    """There is nothing to compare with, and it is said."""
    assert skipped.main(str(tmp_path / "none.xml"), __file__) == 0
    assert "what make test has skipped is not known" in capsys.readouterr().out


def test_the_runs_leave_their_reports():
    """Those that are compared."""
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert makefile.count("--junitxml=build/test.xml") == makefile.count("--junitxml=build/test-peers.xml") == 1
