"""Each command of docs/findings.md shows what is said beside it."""

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from peers.test_timm import timm  # noqa: F401
from refopt import cli, oracle

torch = pytest.importorskip("torch")
optax = pytest.importorskip("optax")

PAGE = (Path(__file__).parents[2] / "docs" / "findings.md").read_text()
COMMANDS = re.findall(r"^    python -m refopt (.*)\n((?:    # .*\n)+)", PAGE, flags=re.M)
BLOCKS = re.findall(r"^    (oracle\.check\(.*\))\n((?:    # .*\n)*)", PAGE, flags=re.M)
TIMM = "lamb.Lamb", "lion.Lion", "nvnovograd.NvNovoGrad", "radam.RAdamLegacy", "rmsprop_tf.RMSpropTF", "nadamw.NAdamW"


@pytest.fixture
def names(timm):  # noqa: F811
    """What the commands have imported. Tensors that are made empty are NaN, whatever the memory holds."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # in this process, where steps then have to run
    here = SimpleNamespace(check=partial(oracle.check, process=False))
    yield {"oracle": here, "torch": torch, "optax": optax} | {name.partition(".")[2]: timm(name) for name in TIMM}
    torch.use_deterministic_algorithms(before)


def each(table):
    """A parameter for each command; make test-peers tries every fourth, from the first."""
    params = [pytest.param(command, said, id=command, marks=[pytest.mark.slow] * (k % 4 > 0))
              for k, (command, said) in enumerate(table)]
    return pytest.mark.parametrize(("command", "said"), params)


@each(BLOCKS)
def test_a_command_shows_what_is_said(names, command, said):
    lines = [line.removeprefix("    # ") for line in said.splitlines()]
    assert lines, "nothing is said of it"
    report = eval(command, names).details()
    assert not [line for line in lines if line not in report], report


@each(COMMANDS)
def test_a_command_of_the_shell_shows_what_is_said(command, said, capsys):
    words = command.split()
    module = next(word.partition(":")[0] for word in words if ":" in word)
    pytest.importorskip(module.partition(".")[0])
    identified = "--identify" in words
    assert cli.main(words if identified else [*words, "--in-place", "--verbose"]) == (0 if identified else 1)
    shown = " ".join(capsys.readouterr().out.split())
    for line in said.splitlines():
        assert line.removeprefix("    # ") in shown


def test_there_are_commands():
    assert len(BLOCKS) == PAGE.count("    oracle.check(") > 10
    assert len(COMMANDS) == PAGE.count("    python -m refopt ") > 4
