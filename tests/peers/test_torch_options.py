"""docs/torch-options.md has every option of every class, as it is."""

import inspect

import pytest
from maps import torch_options

torch = pytest.importorskip("torch")
merged = pytest.importorskip("refopt.torch")


def test_the_page_is_up_to_date():
    """If this fails, run python -m maps.torch_options in the environment of the peers."""
    assert torch_options.PAGE.read_text() == torch_options.page()


@pytest.mark.parametrize("name", torch_options.classes(merged))
def test_every_option_of_pytorchs_class_is_there(name):
    kind = getattr(merged, name)
    theirs = getattr(torch.optim, name, kind)
    text = "\n".join(torch_options.section(kind))
    for option in inspect.signature(theirs.__init__).parameters:
        assert option in ("self", "params", "options") or f"| `{option}` |" in text


def of(name, option):
    """The cell of an option."""
    (line,) = [x for x in torch_options.section(getattr(merged, name)) if x.startswith(f"| `{option}` |")]
    return line.split(" | ")[2].removesuffix(" |")


def test_what_an_option_is_follows_from_the_formula():
    assert of("AdamW", "weight_decay") == "number `coeff`" and of("AdamW", "betas") == "numbers `beta1`, `beta2`"
    assert of("SGD", "nesterov") == "choice `use_nesterov`"
    assert of("SGD", "momentum").startswith("the routine: `sgd` if 0, else `momentum`")
    assert of("AdamW", "foreach") == of("AdamW", "fused") == "no effect"
    assert "autograd" in of("AdamW", "differentiable")
    assert "first value of `sum`" in of("Adagrad", "initial_accumulator_value")


def test_an_option_that_changes_something_else_is_noticed(monkeypatch):
    """As it would be if it were left out of the formula."""
    before = of("AdamW", "eps")
    formula = merged.AdamW.formula
    monkeypatch.setattr(merged.AdamW, "formula", staticmethod(lambda group: formula({**group, "eps": 1e-8})))
    assert before == "number `epsilon`" and of("AdamW", "eps") == "no effect"
