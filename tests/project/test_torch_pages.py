"""What docs/torch.md shows is what the records have, and it says so where there is none."""

import json

import pytest

from benchmarks import torch_pages
from benchmarks.record import ROOT

STEP, TRAINING = (json.loads(path.read_text()) for path in (torch_pages.STEP, torch_pages.TRAINING))


def row_of(text, label):
    """The cells of the first row with a label."""
    return next(line for line in text.splitlines() if line.startswith(f"| {label} ")).strip("| ").split(" | ")[1:]


def test_what_was_not_measured_has_a_dash_or_no_word():
    """`test_readme` has the page with all that was."""
    steps = [row for row in STEP["steps"] if (row["workload"], row["implementation"]) != ("bert-large", "fused")]
    text, whole = (torch_pages.step_text(STEP | {"steps": some}) for some in (steps, STEP["steps"]))
    assert "–" in row_of(text, "PyTorch, `fused`") and "–" not in row_of(whole, "PyTorch, `fused`")
    others = [row | {"workload": "bert-large"} for row in STEP["timelines"]]
    assert "profiler" in torch_pages.step_text(STEP)
    assert "profiler" not in torch_pages.step_text(STEP | {"timelines": others})


def test_a_training_that_does_not_resume_is_told():
    first, *more = TRAINING["resumed"]
    text = torch_pages.training_text(TRAINING | {"resumed": [first | {"differing_elements": 1, "ok": False}, *more]})
    assert f"except that of {first['model']} with {first['optimizer']}" in text
    assert "except that of" not in torch_pages.training_text(TRAINING)


def test_without_a_record_the_page_says_how_to_make_one(tmp_path):
    said = torch_pages.shown(tmp_path / "torch-step-h200.json", torch_pages.step_text)
    assert "make gpu-records ONLY=torch-step`" in said


@pytest.mark.parametrize(("record", "figure", "drawing"), [
    (torch_pages.STEP, torch_pages.STEP_FIGURE, torch_pages.draw_step),
    (torch_pages.TRAINING, torch_pages.TRAINING_FIGURE, torch_pages.draw_training),
], ids=["step", "training"])
def test_the_figures_are_the_records(record, figure, drawing, tmp_path):
    """If this fails, run python -m benchmarks.pages."""
    assert record.is_file() == figure.is_file(), f"{record.relative_to(ROOT)} and {figure.relative_to(ROOT)}"
    if record.is_file():
        pytest.importorskip("matplotlib")
        drawing(json.loads(record.read_text()), tmp_path / "drawn.svg")
        assert (tmp_path / "drawn.svg").read_bytes() == figure.read_bytes()
