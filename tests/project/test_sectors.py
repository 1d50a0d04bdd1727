"""The kernels whose traffic is compared with a GPU's: their figures, their loads in PTX, and how ncu is asked."""

import re
import sys

import pytest

pytest.importorskip("numba.cuda", exc_type=ImportError)

from benchmarks import sectors
from benchmarks.access_patterns import CASES, HEIGHT, THREADS, WIDTH

from .stand_ins import recorded, tool

WARPS, TRANSPOSED = THREADS // 32, HEIGHT * WIDTH // 32
# By hand: sectors of all loads and stores of global memory; conflicts of all accesses to shared memory.
EXPECTED = {"copy": (4 * WARPS, 4 * WARPS, 0), "copy of bytes": (WARPS, WARPS, 0),
            "copy of complex numbers": (2 * 8 * WARPS, 2 * 8 * WARPS, 0),
            "misaligned by one": (5 * WARPS, 4 * WARPS, 0), "stride 32": (32 * WARPS, 4 * WARPS, 0),
            "one element for a warp": (WARPS, 4 * WARPS, 0), "vectors of 16 bytes": (16 * WARPS, 16 * WARPS, 0),
            "array of structures": (4 * 16 * WARPS, 4 * WARPS, 0), "structure of arrays": (4 * 4 * WARPS, 4 * WARPS, 0),
            "transpose, naive": (4 * TRANSPOSED, 32 * TRANSPOSED, 0),
            "transpose, tiled": (4 * TRANSPOSED, 4 * TRANSPOSED, 31 * TRANSPOSED),
            "transpose, tiled and padded": (4 * TRANSPOSED, 4 * TRANSPOSED, 0),
            "shared, stride 2": (4 * WARPS, 4 * WARPS, WARPS), "shared doubles": (8 * WARPS, 8 * WARPS, 0),
            "shared doubles, stride 16": (8 * WARPS, 8 * WARPS, 2 * 7 * WARPS)}


@pytest.mark.parametrize("name", EXPECTED)
def test_figures_of_the_executor(name):
    counts, _ = sectors.on_executor(name)
    conflicts = sum(counts[key] for key in sectors.SHARED)
    assert (counts["sectors load"], counts["sectors store"], conflicts) == EXPECTED[name]


LOADS = {"copy": 1, "array of structures": 4, "structure of arrays": 4, "vectors of 16 bytes": 1, "gather": 2}


@pytest.mark.parametrize("name", LOADS)
def test_the_compiler_keeps_each_load(name):
    case = CASES[name]
    arrays = case.arguments()
    words = ["int64"] * len(arrays) if case.by_address else [f"{x.dtype}[{x.ndim}]" for x in arrays]
    ptx = case.kernel.ptx(words)
    assert len(re.findall(r"\bld\.global", ptx)) == LOADS[name]
    assert case.kernel.function.__code__.co_name in re.findall(r"\.entry (\w+)", ptx)[0]


# Stands in for ncu: what the executor counts as ncu prints it, after lines of its own; {change} overwrites figures.
NCU = """#!{python}
import csv, sys
sys.path.insert(0, {root!r})
if {broken}:
    print("==ERROR== Failed to find metric")
    sys.exit(1)
from benchmarks import sectors
from benchmarks.access_patterns import BLOCK, CASES
from refopt import simt
names = sys.argv[sys.argv.index("--metrics") + 1].split(",")
with open(sys.argv[sys.argv.index("--log-file") + 1], "w") as file:
    print("==PROF== Connected to process 1", file=file)
    writer = csv.writer(file, quoting=csv.QUOTE_ALL)
    writer.writerow(["ID", "Kernel Name", *names])
    writer.writerow(["", "", *("" for _ in names)])
    for number, name in enumerate(CASES):
        counts = sectors.on_executor(name)[0] | {{
            "registers": 32, "static shared": 0, "dynamic shared": 0,
            "occupancy": 100 * simt.occupancy(BLOCK, 32).share,
        }}
        if name == "gather":
            counts |= {change}
        figures = {{sectors.METRICS[key]: f"{{value:,}}" for key, value in counts.items()}}
        entry = "_ZN" + CASES[name].kernel.function.__code__.co_name + "B2v1"
        writer.writerow([number, entry, *(figures[name] for name in names)])
"""


@pytest.mark.parametrize(("change", "broken", "differ"),
                         [({}, False, []),
                          ({"sectors load": 7, "occupancy": 50.0}, False, ["sectors load", "occupancy"]),
                          ({}, True, None)])
def test_the_record(tmp_path, monkeypatch, capsys, change, broken, differ):
    few = {"copy": CASES["copy"], "gather": CASES["gather"]}
    text = NCU.format(python=sys.executable, root=str(sectors.RESULTS.parent.parent), change=change, broken=broken)
    text = text.replace("names = ", f"CASES = {{name: CASES[name] for name in {list(few)}}}\nnames = ")
    tool(tmp_path / "ncu", text, monkeypatch)
    monkeypatch.setattr(sectors, "CASES", few)
    monkeypatch.setattr(sectors, "capability_of", lambda: (9, 0))
    report, status = recorded(sectors, tmp_path / "x.json", monkeypatch)
    if broken:
        assert status == 1 and report["rows"] == [] and "Failed to find metric" in report["failure"]
        return
    assert [row["name"] for row in report["rows"]] == list(few) and report["failure"] == ""
    assert [row["differ"] for row in report["rows"]] == [[], differ] and status == int(bool(differ))
    assert report["rows"][0]["gpu"]["sectors load"] == report["rows"][0]["executor"]["sectors load"] == 4 * WARPS
