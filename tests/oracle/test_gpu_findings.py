"""What docs/findings.md says of optimizers on a GPU, and the record that it says it of."""

import json

from benchmarks.record import RESULTS, ROOT
from refopt.catalog import ROUTINES

RECORD = json.loads((RESULTS / "oracle-h200.json").read_text())


PAGE = (ROOT / "docs" / "findings.md").read_text()


def test_every_kernel_is_right_in_every_bit():
    rows = {row["routine"]: row for row in RECORD["rows"] if row["subject"].startswith("refopt.gpu")}
    assert rows.keys() == ROUTINES.keys() and all(row["ok"] and not row["failed"] for row in rows.values())
    assert all(list(row["largest_ratio"]) == ["float32", "float64", "float16", "bfloat16"] for row in rows.values())


def test_what_the_page_calls_right_is():
    wrong = {row["subject"] for row in RECORD["rows"] if not row["ok"]}
    for name in ("SGD, foreach=False as sgd", "AdamW, fused=True as adamw", "RAdam, foreach=True as radam"):
        assert f"torch.optim.{name} on cuda" not in wrong
    ratio = next(row for row in RECORD["rows"] if "RAdam, capturable" in row["subject"])["largest_ratio"]["float32"]
    assert f"nearly equal numbers, and the ratio is {ratio['params']:.3g}." in PAGE
