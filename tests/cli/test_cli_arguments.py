"""What the arguments of a command become: the calls of `refopt.oracle` that it makes."""

import functools
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from refopt import cli
from refopt.cli import check, compare, vectors
from refopt.cli.commands import Parser
from refopt.oracle import LAWS

NUMBERS = ["lr=0.5", "on=TRUE", "off=false", "none=None", "of=[1, 2]", "text=a=b"]
MADE = {"lr": 0.5, "on": True, "off": False, "none": None, "of": [1, 2], "text": "a=b"}


class Report(SimpleNamespace):
    """A report that says which one it is."""

    def __str__(self):
        return "briefly"

    def details(self):
        return "with details"

    def to_json(self):
        return "{}"


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """The arguments of each call of a function of `refopt.oracle`, which finds that everything is wrong."""
    made = []

    def instead_of(function):
        @functools.wraps(function)
        def call(*args, progress=None, **named):
            made.append((*args, named))
            return Report(ok=False, matches=(), items=[], failed_laws=())

        return call

    (tmp_path / "steps.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module, names in ((check, ("check", "identify")), (compare, ("compare",)), (vectors, ("vectors",))):
        for name in names:
            monkeypatch.setattr(module, name, instead_of(getattr(module, name)))
    yield made
    sys.modules.pop("steps", None)


SEVERAL = ["--set", *NUMBERS, "--with", "eps=1e-3", "options=x", "--arrays", "torch", "--device", "cuda", "--seed", "3"]
OWN, OF_BOTH = {"eps": 1e-3, "options": "x"}, {"set": MADE, "arrays": "torch", "device": "cuda", "seed": 3}
COMMON = OWN | OF_BOTH
STEPS = """one, two = 1, 2
class Kind:
    def __init__(self, params, lr=1, states=None, seed=0, device=None): pass
"""
DTYPES = ["--dtype", "bf16", "fp64", "float32"]
NAMES = ["bfloat16", "float64", "float32"]
CALLS = [
    (["check", "steps.py:one", "--as", "none"], 1, {"seed": 0, "exact": False, "set": {}}),
    (["check", "steps.py:one", "--as", "none", *SEVERAL, *DTYPES, "bfloat16", "--law", "L1", "L7", "--examples", "2",
      "--secret", "9", "--deadline", "4.5", "--expected-failures", "a", "--skip-file", "b", "--names", "moment1=m",
      "--symmetry", "sign", "--tolerance", "0.25", "--allow-skips", "L3", "--in-place", "--exact"], 1,
     COMMON | {"dtypes": NAMES, "laws": ["L1", "L7"], "examples": 2, "secret": 9, "deadline": 4.5, "exact": True,
               "expected_failures": "a", "skips": "b", "names": {"moment1": "m"}, "symmetries": ["sign"],
               "tolerance": 0.25, "allow_skips": ["L3"], "process": False}),
    (["check", "--identify", "steps.py:one", *SEVERAL, "--names", "lr=rate"], 1, COMMON | {"names": {"lr": "rate"}}),
    (["compare", "steps.py:one", "steps.py:two"], 1, 2,
     {"set": {}, "arrays": None, "device": None, "dtypes": None, "within": "bits", "seed": 0,
      "expected_failures": None, "options_a": {}, "options_b": {}}),
    (["compare", "steps.py:one", "steps.py:two", *SEVERAL, *DTYPES, "--within", "0.5", "--with-a",
      "a=1", "--with-b", "b=2", "--expected-failures", "c", "--deadline", "4.5", "--in-place"], 1, 2,
     OF_BOTH | {"dtypes": NAMES, "within": 0.5, "options_a": OWN | {"a": 1}, "options_b": OWN | {"b": 2},
               "expected_failures": "c", "deadline": 4.5, "process": False}),
    (["vectors", "adam"], "adam", {"dtypes": ["float32", "float64"], "set": {}, "examples": 5, "seed": 0}),
    (["vectors", "adam", *DTYPES, "--set", *NUMBERS, "--examples", "2", "--seed", "3"], "adam",
     {"dtypes": NAMES, "set": MADE, "examples": 2, "seed": 3})]


@pytest.mark.parametrize("row", CALLS, ids=lambda row: " ".join(row[0])[:50])
def test_calls(calls, row, capsys):
    """All arguments arrive, under the names of the functions, and values that are no literals are text."""
    args, *expected = row
    status = cli.main(args)
    assert status == (0 if args[0] == "vectors" else 1)
    *_, (*given, named) = calls
    given = given[1:] if args[0] == "check" and "--identify" not in args else given
    assert [*given, named] == expected
    if args[0] in ("check", "compare"):
        assert capsys.readouterr().out == "briefly\n"


@pytest.mark.parametrize(("args", "said"), [
    (["--verbose"], "with details\n"), (["--json", "-"], "{}\n"), (["--identify", "--json", "-"], "{}\n"),
    (["--json", "x.json"], "briefly\n"), (["--identify"], "briefly\n")])
def test_reports(calls, args, said, capsys):
    assert cli.main(["check", "steps.py:one", "--as", "sgd", *args]) == 1
    assert capsys.readouterr().out == said


def test_vectors_in_a_file(calls):
    assert cli.main(["vectors", "adam", "--to", "x"]) == 0 and Path("x").read_text() == "{}"


@pytest.mark.parametrize(("args", "laws"), [([], [*LAWS]), (["--as", "none"], [x for x in LAWS if LAWS[x].runs])])
def test_laws_are_listed(args, laws, capsys):
    assert cli.main(["check", "--list-laws", *args]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    found = re.findall(r"\b(L\d+) [^:]+: .*?( On request\.)?(?= L\d+ [^:.]+: |$)", listed)
    assert [law for law, _ in found] == laws and [x != "" for _, x in found] == [LAWS[law].asked for law in laws]


def test_an_argument_of_the_name_that_the_command_has(calls, capsys):
    """Is the class's; functions and instances have none."""
    for args in (["--as", "none", "--states", "8bit"], ["--identify"]):
        assert cli.main(["check", "steps.py:Kind", *args, "--with", "states=few", "seed=1", "device=x", "lr=2"]) == 1
        *_, step, named = calls[-1]
        assert step.keywords == {"states": "few", "seed": 1, "device": "x"} and named["lr"] == 2
        assert cli.main(["check", "steps.py:one", *args, "--with", "seed=1"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "argument --with: expected one of the optimizer's own arguments, got seed" in said


def test_errors_are_broken_at_spaces_alone(capsys):
    with pytest.raises(SystemExit):
        Parser(prog="refopt").error("x " * 28 + "bert-large-uncased")
    assert "  bert-large-uncased\n" in capsys.readouterr().err
