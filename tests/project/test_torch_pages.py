"""What docs/torch.md shows is what the records have, and it says so where there is none."""

import json

import pytest

from benchmarks import torch_pages
from benchmarks.record import ROOT

STEP = {
    "device": "NVIDIA H200",
    "steps": [
        {"workload": "resnet50", "routine": "adamw", "implementation": "refopt.torch", "how": "eager",
         "condition": condition, "host_us": us, "ms": 0.1771, "floor_ms": 0.167}
        for condition, us in (("same addresses", 51.2), ("new addresses", 87.6), ("new lr", 60.4))
    ] + [
        {"workload": "resnet50", "routine": "adamw", "implementation": "fused", "how": "eager",
         "condition": "new addresses", "host_us": 402.4, "ms": 0.2612, "floor_ms": 0.167},
        {"workload": "10,000 tensors of 100", "routine": "adamw", "implementation": "fused", "how": "eager",
         "condition": "new addresses", "host_us": 12345.6, "ms": 0.5, "floor_ms": 0.01},
        {"workload": "resnet50", "routine": "adamw", "implementation": "fused", "how": "graph", "skipped": "no"},
    ],
    "compiled": [{"workload": "resnet50", "routine": "adamw", "implementation": "torch.compile", "how": "compiled",
                  "skipped": "no time left of 60 s"}],
    "memory": [{"workload": "resnet50", "routine": "adamw", "implementation": "fused", "state_bytes": 204_456_900,
                "allocated_bytes": 205_000_000}],
    "timelines": [
        {"workload": "resnet50", "routine": "adamw", "implementation": name,
         "spans": [["host", "launch", 5.0, 3.0], ["gpu", "kernel", 9.0, 170.0], ["step", "step", 0.0, 60.0]]}
        for name in ("refopt.torch", "fused", "foreach")
    ],
}
NAMES = "refopt.torch", "fused", "foreach"
CASE = {"model": "ResNet-50", "optimizer": "AdamW"}
TRAINING = {
    "device": "NVIDIA H200",
    "speeds": [CASE | {"implementation": name, "samples_per_second": 1000.0 + k, "peak_bytes": 7e9}
               for k, name in enumerate(NAMES)],
    "curves": [CASE | {"steps": 3, "elements": 4000, "largest_refopt": 0.25, "largest_fused": 0.5, "skipped": 0,
                       "losses": {name: [7.0, 6.0 + 1e-4 * k, 5.0] for k, name in enumerate(NAMES)}}],
    "resumed": [CASE | {"differing_elements": 0, "ok": True}],
}


def row_of(text, label):
    """The cells of the first row with a label."""
    return next(line for line in text.splitlines() if line.startswith(f"| {label} ")).strip("| ").split(" | ")[1:]


def test_a_step_by_its_record():
    text = torch_pages.step_text(STEP)
    for shown in (text, torch_pages.step_in_short(STEP)):
        assert row_of(shown, "**`refopt.torch`**") == ["88", "0.177", "–", "–"]
        assert row_of(shown, "PyTorch, `fused`") == ["402", "0.261", "12,346", "0.500"]
    assert row_of(text, "floor") == ["", "0.167", "", "0.010"]
    assert "`torch.compile`" not in text and "CUDA graph" not in text, "they were not measured"
    assert "where they were, microseconds on the host: 51 on ResNet-50." in text
    assert "another learning rate, microseconds on the host: 60 on ResNet-50." in text
    assert "60 µs by `refopt.torch`, 60 µs by `fused`, 60 µs by `foreach`" in text
    assert "204.46" in text and torch_pages.STEP_FIGURE.name in text


def test_a_training_by_its_record():
    text = torch_pages.training_text(TRAINING)
    assert row_of(text, "`fused`, samples per second") == ["1,001.0"] and "the same bits as one" in text
    assert row_of(text, "ResNet-50, AdamW") == ["3", "4,000", "0.25", "0.50", "0"]
    wrong = TRAINING | {"resumed": [CASE | {"differing_elements": 1, "ok": False}]}
    assert "except that of ResNet-50 with AdamW" in torch_pages.training_text(wrong)


def test_without_a_record_the_page_says_how_to_make_one(tmp_path):
    said = torch_pages.shown(tmp_path / "torch-step-h200.json", torch_pages.step_text)
    assert "make gpu-records ONLY=torch-step`" in said
    (tmp_path / "torch-step-h200.json").write_text(json.dumps(STEP))
    assert "| floor |" in torch_pages.shown(tmp_path / "torch-step-h200.json", torch_pages.step_text)


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
