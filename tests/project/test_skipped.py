"""A test that all runs skip is named: reports of two runs, of which the second lacks nothing that the first lacks."""

import subprocess
import sys
from pathlib import Path

import pytest
import skipped

SUITE = {
    "test_peer.py": "import pytest\ndef test_one():\n    pytest.importorskip({!r})\ndef test_two(): pass\n",
    "test_module.py": "import pytest\npytest.importorskip({!r})\ndef test_three(): pass\n",
}
PLUGINS = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest"]


def report(folder, names):
    """What pytest reports of the suite where one module or another is to be had, by name of test file."""
    folder.mkdir()
    for file, name in names.items():
        (folder / file).write_text(SUITE[file].format(name))
    command = [sys.executable, "-m", "pytest", "-q", *PLUGINS, "--rootdir=.", "--junitxml=report.xml", "."]
    subprocess.run(command, cwd=folder, check=False, capture_output=True)
    return folder / "report.xml"


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run that lacks what both files need."""
    return report(tmp_path_factory.mktemp("runs") / "first", dict.fromkeys(SUITE, "no_such"))


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ({"test_peer.py": "math", "test_module.py": "math"}, []),
        ({"test_peer.py": "no_such", "test_module.py": "math"}, ["test_peer.test_one"]),
        ({"test_peer.py": "math", "test_module.py": "no_such"}, ["test_module"]),
        ({"test_peer.py": "math"}, ["test_module"]),
    ],
    ids=["none", "a test", "a module", "a module that is not run"],
)
def test_what_both_runs_skip_is_named(tmp_path, capsys, first, second, named):
    status = skipped.main(str(first), str(report(tmp_path / "second", second)))
    out = capsys.readouterr().out
    assert status == (1 if named else 0)
    assert [line.split(": ")[1] for line in out.splitlines()] == named
    assert all("could not import 'no_such'" in line for line in out.splitlines())


def test_without_a_first_run(tmp_path, capsys):
    """There is nothing to compare with, and it is said."""
    assert skipped.main(str(tmp_path / "none.xml"), __file__) == 0
    assert "what make test has skipped is not known" in capsys.readouterr().out


def test_the_runs_leave_their_reports():
    """Those that are compared."""
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert makefile.count("--junitxml=build/test.xml") == makefile.count("--junitxml=build/test-peers.xml") == 1
