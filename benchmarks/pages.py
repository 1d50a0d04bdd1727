"""Puts the figures of the records, and the rows of the catalogue, into README.md and docs/, between their markers.

python -m benchmarks.pages
"""

import math
from collections.abc import Callable
from pathlib import Path

from benchmarks import torch_pages
from benchmarks.detector_table import with_detectors
from benchmarks.findings import page as findings
from benchmarks.readme import elements, muon, norms, reductions, shards, with_tables
from benchmarks.record import ROOT, read
from benchmarks.sections import figures, table, with_section


def with_gpu_findings(page: str) -> str:
    """docs/findings.md with a row for each optimizer that is wrong on a GPU."""
    lines = [["optimizer", "dtypes", "laws that fail", "largest ratio"], ["---"] * 4]
    for row in read("oracle-h200.json")["rows"]:
        if row["ok"] or not row["subject"].endswith(" on cuda"):
            continue
        # L10 has tensors of other dtypes in its lists, beside those of the dtype that it is tried in.
        dtypes = dict.fromkeys(d for law, x in row["failed"].items() if law != "L10" for d in x["dtypes"])
        largest = max(x for of_dtype in row["largest_ratio"].values() for x in of_dtype.values() if math.isfinite(x))
        cells = ", ".join(dtypes), findings.in_short(row["failed"]), f"{largest:.2g}" * (largest > 1)
        lines.append([f"`{row['subject'].removesuffix(' on cuda')}`", *cells])
    return with_section(page, "gpu", table(lines))


def with_ladder(page: str) -> str:
    """docs/merging.md with the times of Adam's ladder."""
    lines = []
    for row in read("ladder-h200.json")["ladders"]["adam"]:
        share = f"{100 * row['share_of_copy']:.0f} %"
        lines.append([f"`{row['rung']}`", str(row["launches"]), f"{row['ms']:.3f}", share])
    return with_section(page, "ladder", figures(["rung", "launches", "ms", "share of a copy's bandwidth"], lines))


def with_muon(page: str) -> str:
    """docs/muon.md with how many elements of a GPU's results differ from NumPy's, and the times of a step."""
    steps, products = (read(f"{name}-h200.json") for name in ("muon", "products"))
    rows = [*steps["bits"], *steps["rows"], *products["bits"], *products["edges"], *products["iterations"]]
    elements, differing = (f"{sum(row[key] for row in rows):,}" for key in ("elements", "differing"))
    bits = (f"On an H200, {differing} of {elements} elements of steps and products differ from NumPy's\n"
            "([steps](../benchmarks/results/muon-h200.json), [products](../benchmarks/results/products-h200.json)).")
    return with_section(with_section(page, "bits", bits), "muon", muon())


MISSED = """\
- By Gram matrices, Muon takes {:.2f} of gram-newton-schulz's time on BERT-large (goal 0.68), {:.2f} on GPT-2 XL (0.70).
- States in 8 bits save memory, not time. With bf16 parameters and 8-bit remainders, AdamW takes {:.3f} ms on ResNet-50
  (goal 0.105), PyTorch's in bf16 {:.3f}, flashoptim's {:.3f}. On BERT-large, PyTorch's takes {:.2f}, refopt's {:.2f}.
- Lazy steps take longer if a gradient repeats rows: {:.0f} µs if Zipf's law draws the rows, {:.0f} without repeats.
- An eager step of `refopt.torch.AdamW` takes {:.0f} µs of host time on ResNet-50, {:.0f} accelerated; the goal was 100.
- In ZeRO on two H200s, PyTorch's AdamW is faster: {:.1f} ms an iteration, not {:.1f}. On four, where one optimizer was
  timed after the other, and before its host time was reduced, it was also faster in FSDP2: {:.0f}, not {:.0f}."""


def with_missed(page: str) -> str:
    """docs/limits.md with what takes longer than a goal, or than others."""

    def of(record: str, key: str, **wanted: str) -> float:
        return float(next(row[key] for row in read(record)["steps"] if wanted.items() <= row.items()))

    gram, small = ("refopt, Gram", "gram-newton-schulz, graph"), "bf16 and 8 bits, 8-bit states"
    took = [[of("muon-h200.json", "ms", model=name, step=step) for step in gram] for name in ("BERT-large", "GPT-2 XL")]
    ours, theirs, other = f"refopt, {small}", "torch fused, bf16, graph", f"flashoptim, {small}, graph"
    coded = [*(("resnet50", step) for step in (ours, theirs, other)), ("bert-large", theirs), ("bert-large", ours)]
    eager = {"workload": "resnet50", "routine": "adamw", "how": "eager", "condition": "after backward"}
    return with_section(page, "missed", MISSED.format(
        *(gram / standard for gram, standard in took),
        *(of("coded-h200.json", "ms", model=model, step=step) for model, step in coded),
        *(of("rows-h200.json", "device_us", step="refopt", draw=draw, count="global") for draw in ("zipf", "uniform")),
        *(of("torch-step-h200.json", "host_us", implementation=torch_pages.OURS + how, **eager)
          for how in ("", ", accelerated")),
        *(of(f"fully-shard-h200-{gpus}.json", "iteration_ms", way=way, implementation=name)
          for gpus, way in (("x2", "DDP and ZeroRedundancyOptimizer"), ("x4", "fully_shard"))
          for name in ("fused", torch_pages.OURS))))


# GPUs of a compute capability. Of those that kernels have run on, the records of laws are named.
SUCH_AS = {
    "7.5": "T4, RTX 20, GTX 16", "8.0": "A100, A30", "8.6": "A10, A40, RTX 30", "8.9": "L4, L40, RTX 40",
    "9.0": "H100, H200", "10.0": "B200", "12.0": "RTX 50, RTX PRO 6000",
}
OLDER = "V100, P100, GTX 10"


def with_gpus(page: str) -> str:
    """docs/gpus.md with what is known of each compute capability."""
    record = read("capabilities.json")
    lines = [["compute capability", "such as", "what is known"], ["---"] * 3]
    lines.append([f"below {record['capabilities'][0]}", OLDER, "refused, with an error that names the device"])
    for capability in record["capabilities"]:
        said = f"{record['kernels_compiled']} kernels compiled"
        if capability == "9.0":
            passed = {name: read(f"laws-{name.lower()}.json")["counts"]["passed"] for name in ("H100", "H200")}
            runs = (f"{n:,} on an [{x}](../benchmarks/results/laws-{x.lower()}.json)" for x, n in passed.items())
            said = f"measured; tests of laws that passed: {', '.join(runs)}"
        lines.append([capability, SUCH_AS[capability], said])
    return with_section(page, "gpus", table(lines))


def with_first_steps(page: str) -> str:
    """docs/compilers.md with what a first step takes in a fresh process."""
    lines = [["kernels", "total, ms", "driver and context", "plan", "step", "imported"], ["---", *["---:"] * 4, "---"]]
    for row in read("first-step-h200.json")["rows"]:
        names = ", ".join(name.replace("_", "-") for name in row["imported"]) or "no compiler"
        times = (f"{row['ms'][part]:,.0f}" for part in ("first", "device", "plan", "step"))
        lines.append([{"cold": "compiled", "warm": "cached"}[row["how"]], *times, names])
    return with_section(page, "first-step", table(lines))


# An operation, what the executor gives, what an H200 has given in `tests/simt/random_kernels`, and the rule.
LEFT_OPEN = [
    ["a NaN, or a float beyond its range, as an integer", "as PTX's `cvt`: the nearest integer of the type, for 8 bits "
     "the low half of the 16-bit result; for NaN 0, or only the highest bit", "differs for constants and below 32 bits",
     "`float-range`"],
    ["sums, differences and products beyond int64", "wrap", "`x + 1 > x` is true, `x * 2 // 2` is x",
     "`signed-overflow`"],
    ["`abs(x)` of the smallest int16, stored in an int64", "-32768", "32768", "`signed-overflow`"],
    ["an integer divided by zero", "0", "", "`zero-division`"],
    ["functions in fp32", "the nearest float", "a few ULPs off", "none"],
    ["functions in fp64", "NumPy's or the C library's, as below", "a few ULPs off", "none"],
]


def with_left_open(page: str) -> str:
    """docs/executor-finds.md with what CUDA leaves open, and how functions in fp64 are rounded."""
    lines = [["operation", "executor", "H200", "rule that reports it"], ["---"] * 4, *LEFT_OPEN]
    record = read("left_open-h200.json")
    for row in record["conversions"] + record["overflow"]:
        if row.get("differing"):
            *given, there, here = row["first"][0]
            what = f"`{row['expression']}`, {row['of']} {', '.join(map(str, given))}"
            lines.append([what, str(here), f"{there}; {row['differing']} of {row['inputs']} inputs differ", ""])
    keys = {"executor_not_nearest": "misrounded, executor", "executor_error": "largest error, ULPs",
            "gpu_not_nearest": "misrounded, H200", "gpu_error": "largest error, ULPs", "differing": "differ"}
    rounded = []
    for row in record["functions"]:
        if "executor_error" in row:
            said = (f"{row[key]:.3f}" if key.endswith("error") else f"{row[key]:,}" for key in keys)
            rounded.append([f"`{row['expression']}`", *said])
    functions = figures([f"function, fp64, {record['functions'][0]['inputs']:,} inputs", *keys.values()], rounded)
    return with_section(page, "left-open", f"{table(lines)}\n\n{functions}")


PAGES: dict[Path, Callable[[str], str]] = {
    ROOT / "README.md": with_tables,
    ROOT / "docs" / "compilers.md": with_first_steps,
    ROOT / "docs" / "executor-compared.md": with_detectors,
    ROOT / "docs" / "executor-finds.md": with_left_open,
    ROOT / "docs" / "findings.md": lambda page: findings.with_findings(with_gpu_findings(page)),
    ROOT / "docs" / "gpus.md": with_gpus,
    ROOT / "docs" / "limits.md": with_missed,
    ROOT / "docs" / "merging.md": with_ladder,
    ROOT / "docs" / "muon.md": with_muon,
    ROOT / "docs" / "several-gpus.md": lambda page: with_section(page, "reductions", reductions()),
    ROOT / "docs" / "sharding.md": lambda page: with_section(page, "shards", shards()),
    ROOT / "docs" / "sharding-by-element.md": lambda page: with_section(
        with_section(page, "elements", elements()), "norms", norms()),
    ROOT / "docs" / "torch.md": torch_pages.with_records,
}


if __name__ == "__main__":
    for path, made in PAGES.items():
        path.write_text(made(path.read_text()))
    torch_pages.draw()
