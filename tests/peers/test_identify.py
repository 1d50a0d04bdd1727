"""`identify` is right for every optimizer of the tables, and says that it is none for those of other formulas."""

import functools
import inspect
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
optax = pytest.importorskip("optax")

from peers.test_timm import timm  # noqa: E402, F401
from refopt import cli, oracle  # noqa: E402
from refopt.oracle.subjects import accepted  # noqa: E402
from refopt.oracle.subjects.optax_peers import FUNCTIONS, PEERS  # noqa: E402
from refopt.oracle.subjects.torch_peers import CLASSES, TIMM, TORCH  # noqa: E402
from refopt.oracle.variants import ROUTINES  # noqa: E402


def holds(found, routine, choices):
    """Whether the routine is among what it was found to be, with the choices that its table has."""
    row = ROUTINES[routine]
    wanted = {name: x for name, x in choices.items() if name in row.choices}
    for match in (x for x in found.matches if x.routine == routine):
        if all(match.choices.get(name, x) == x for name, x in wanted.items()):
            return True
    return False


def of_torch():
    for routine, name in CLASSES.items():
        options = {"momentum": 0.0} if routine == "sgd" else {"momentum": 0.9} if routine == "momentum" else {}
        yield routine, getattr(torch.optim, name), options, TORCH[routine].choices


def of_timm(timm, name):  # noqa: F811
    """A class by its name, from the file that defines it."""
    (folder,) = sys.modules["timm.optim"].__path__
    (file,) = (x for x in Path(folder).glob("*.py") if f"class {name}(" in x.read_text())
    return timm(f"{file.stem}.{name}")


def of_optax():
    for name, routines in FUNCTIONS.items():
        for routine in routines:
            peer = PEERS[routine]
            options = {x: y for x, y in peer.only.items() if x in inspect.signature(getattr(optax, name)).parameters}
            if routine == "momentum":
                options["momentum"] = 0.9
            yield routine, getattr(optax, name), options, peer.choices


EVERY = [*of_torch(), *of_optax()]


def check_named(found, routine, choices):
    assert holds(found, routine, choices), str(found)
    assert found.routine == routine or found.ambiguous, str(found)
    assert found.matches[0].off < (2.0**-3 if ROUTINES[routine].matrix_arguments else 2.0**-16)


@pytest.mark.parametrize(("routine", "kind", "options", "choices"), EVERY)
def test_every_optimizer_of_the_tables(routine, kind, options, choices):
    check_named(oracle.identify(kind, **options), routine, choices)


STARTS = {"RMSpropTF": "mean_square from 1"}


@pytest.mark.parametrize(("routine", "name"), [x for x in TIMM if x[1] != "NAdamW"])
def test_every_optimizer_of_timms(timm, routine, name):  # noqa: F811
    kind, peer = of_timm(timm, name), TIMM[routine, name]
    found = oracle.identify(kind, **{x: y for x, y in peer.only.items() if x in accepted(kind)})
    check_named(found, routine, peer.choices)
    assert STARTS.get(name, "") in str(found)


@pytest.mark.parametrize("name", [pytest.param("NAdamW", marks=pytest.mark.slow), "Lamb", "AdamP", "SGDP", "Muon"])
def test_optimizers_of_timms_that_are_none(timm, name):  # noqa: F811
    """By default its Lamb clips, by the norm of all gradients; NAdamW has one correction for two averages.

    AdamP is AdamW, and SGDP is SGD, but for gradients that are nearly orthogonal to their parameter; its Muon is AdamW
    of all but matrices of four rows and columns or more.
    """
    assert oracle.identify(of_timm(timm, name)).routine is None


SLOW = torch.optim.Rprop, torch.optim.ASGD, optax.adabelief, optax.sm3  # no different in kind from the others


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.LBFGS, optax.yogi,
                                  *(pytest.param(x, marks=pytest.mark.slow) for x in SLOW)])
def test_optimizers_of_other_formulas_are_none(kind):
    found = oracle.identify(kind)
    assert found.routine is None and not found.matches and ": none " in str(found)


@pytest.mark.parametrize("option", ["foreach", "fused", "maximize", "amsgrad"])
def test_choices_and_states_are_named(option):
    options = {option: True}
    found = oracle.identify(torch.optim.Adam, **options)
    assert found.routine == "adam" and not found.ambiguous
    assert found.choices["maximize"] == options.get("maximize", False) and found.choices["decay"] == "l2"
    assert found.matches[0].states == (("moment2_max",) if "amsgrad" in options else ())


def test_a_number_that_no_routine_takes():
    """A name may stand for something else, such as the alpha of AdEMAMix, which is 5."""

    class Scaled(torch.optim.SGD):
        def __init__(self, params, lr=0.1, alpha=5.0):
            super().__init__(params, lr=lr)
            self.param_groups[0]["alpha"] = alpha

    assert oracle.identify(Scaled, alpha=5.0).routine == "sgd"


def test_a_function_that_makes_an_optimizer():
    found = oracle.identify(lambda params, lr: torch.optim.SGD(params, lr, momentum=0.5))
    assert found.routine == "momentum" and found.matches[0].numbers["mu"] == 0.5
    for make in (torch.optim.SGD, optax.sgd):  # what is given beside a partial comes after it
        assert oracle.identify(functools.partial(make, momentum=0.5), momentum=0.25).matches[0].numbers["mu"] == 0.25
    assert oracle.identify(torch.optim.SGD, lr=torch.tensor(0.125)).routine == "momentum"


def test_an_instance_has_its_own_numbers():
    """Without decay AdamW is Adam, and that is what it is said to be."""
    param = [torch.nn.Parameter(torch.ones(2))]
    found = oracle.identify(torch.optim.AdamW(param, weight_decay=0.0))
    assert found.routine == "adam" and found.ambiguous
    assert {match.routine for match in found.matches} >= {"adam", "adamw"}
    assert "equal with these numbers: " in str(found)
    decayed = oracle.identify(torch.optim.AdamW(param, weight_decay=0.25))
    assert decayed.routine == "adamw" and decayed.matches[0].numbers["coeff"] == 0.25
    other = oracle.identify(torch.optim.AdamW(param, weight_decay=0.25), weight_decay=0.5)
    assert other.matches[0].numbers["coeff"] == 0.5


def test_a_pair_that_is_taken_the_other_way_round():
    """Also where the default has one number twice."""
    class Exchanged(torch.optim.Adam):
        def __init__(self, params, lr=1e-3, betas=(0.9, 0.9), eps=1e-8, weight_decay=0.0):
            super().__init__(params, lr, betas[::-1], eps, weight_decay)

    numbers = {kind: oracle.identify(kind).matches[0].numbers for kind in (Exchanged, torch.optim.Adam)}
    assert numbers[Exchanged]["beta1"] == numbers[torch.optim.Adam]["beta2"] != numbers[Exchanged]["beta2"]


def test_a_failure_is_shown_again_by_what_the_optimizer_was_given(capsys):
    given = "--with foreach=true weight_decay=0.5 --names moment1=exp_avg --examples 0"
    asked = f"check torch.optim:Adam --as adamw --dtype fp32 --law L1 {given}"
    assert cli.main(asked.split()) == 1
    assert f"  again: refopt {asked}\n" in capsys.readouterr().out


def test_the_command(capsys):
    assert cli.main(["check", "--identify", "torch.optim:Rprop"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("torch.optim.Rprop: none of ") and all(len(line) <= 80 for line in out.splitlines())
    assert cli.main(["check", "--identify", "torch.optim:AdamW", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["routine"] == "adamw" and told["choices"]["epsilon_at"] == "corrected"
    assert cli.main(["check", "--identify", "torch.optim:AdamW", "--with", "sign=1"]) == 2


class DecayedLate(torch.optim.Adam):
    """Adam, and after its step a decay by ``weight_decay``, which is 0 by default."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, lr, betas, eps)
        self.param_groups[0]["weight_decay"], self.late = 0.0, weight_decay

    @torch.no_grad()
    def step(self):
        super().step()
        for p in self.param_groups[0]["params"]:
            p.add_(p, alpha=-self.param_groups[0]["lr"] * self.late)


def test_what_is_left_out_is_said():
    found = oracle.identify(DecayedLate)
    assert found.routine == "adam" and found.left_out == ["weight_decay"]
    assert "without weight_decay, 0 by default: with other values it matches no formula" in str(found)
    assert oracle.identify(torch.optim.AdamW).left_out == []
