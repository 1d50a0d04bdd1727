"""The record of what CUDA leaves open: its rows, and the page that is made of it, also with a GPU's part."""

import json

import numpy as np
import pytest

from benchmarks import left_open, pages
from benchmarks.record import ROOT
from refopt import simt

PAGE = (ROOT / "docs" / "executor-finds.md").read_text()


def test_a_row_has_the_results_that_differ():
    x = np.array([1.0, 2.0, np.nan, 4.0])
    here, there = np.sqrt(x), np.sqrt(x)
    there[1] = np.nextafter(there[1], 9)
    row = left_open.row("math.sqrt(x)", x, x, here, there)
    assert (row["differing"], row["ulps"], row["first"]) == (1, 1, [[2.0, there[1], here[1]]])
    assert row["executor_not_nearest"] == 0 < row["gpu_not_nearest"] == 1


@pytest.mark.parametrize("expression", ["np.uint8(x)", "x + 1 > x", "math.exp(x)", "x % y"])
def test_the_executor_runs_the_kernels(expression):
    _, _, x, y, dtype = next(case for case in left_open.inputs() if case[1] == expression)
    assert left_open.results(simt.cuda, simt.cuda.jit, expression, x[:9], y[:9], dtype).dtype == dtype


def test_the_page_has_the_parts_of_the_executor_and_of_a_gpu(tmp_path, monkeypatch):
    record = json.loads((ROOT / "benchmarks" / "results" / "left_open-h200.json").read_text())
    record["conversions"][0] |= {"differing": 3, "first": [[1e10, 7, 255]]}
    for row in record["functions"]:
        row |= {"differing": 5, "gpu_not_nearest": 6, "gpu_error": 0.75}
    (tmp_path / "left_open-h200.json").write_text(json.dumps(record))
    monkeypatch.setattr("benchmarks.record.RESULTS", tmp_path)
    page = pages.with_left_open(PAGE)
    what = f"`{record['conversions'][0]['expression']}`, {record['conversions'][0]['of']} 10000000000.0"
    assert f"| {what} | 255 | 7; 3 of {record['conversions'][0]['inputs']} inputs differ |" in page
    row = next(row for row in record["functions"] if "executor_error" in row)
    assert f" | {row['executor_not_nearest']:,} | {row['executor_error']:.3f} | 6 | 0.750 | 5 |" in page
