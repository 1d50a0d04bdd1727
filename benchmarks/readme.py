"""The tables of README.md: figures of the records, and rows of the catalogue."""

import importlib
from collections.abc import Iterable
from typing import Any

from benchmarks import torch_pages
from benchmarks.record import ROOT, read
from benchmarks.sections import figures, table, with_section
from refopt.catalog import KNOWN, Spec
from refopt.gpu import show

NORMED = {"lamb": "LAMB", "novograd": "NovoGrad", "lars_momentum": "LARS", "muon beside adamw": "Muon beside AdamW"}
WORKLOADS = {"resnet50": "ResNet-50", "bert-large": "BERT-large", "gpt2-xl": "GPT-2 XL"}
Line = tuple[str, str, str]  # label, implementation, how it is enqueued; a floor stands under the form it counts for
LARS: tuple[Line, ...] = (
    ("PyTorch, a loop over tensors", "loop", "eager"),
    ("PyTorch, `_foreach` operations", "foreach_addcmul", "eager"),
    ("the same, as a CUDA graph", "foreach_addcmul", "graph"),
    ("`torch.compile`, as a CUDA graph", "torch.compile", "graph"),
    ("**refopt, two launches**", "two_launches", "plan"),
    ("floor", "two_launches", "floor"),
    ("**refopt, norm carried over**", "carried_norm", "plan"),
    ("floor", "carried_norm", "floor"),
)
ADAMW: tuple[Line, ...] = (
    ("PyTorch, `foreach`, `capturable`", "torch foreach", "eager"),
    ("PyTorch, `fused`, `capturable`", "torch fused", "eager"),
    ("the same, as a CUDA graph", "torch fused", "graph"),
    ("`torch.compile`, as a CUDA graph", "torch.compile", "graph"),
    ("**refopt, one launch**", "refopt", "plan"),
    ("floor", "refopt", "floor"),
)


def times(file: str, routine: str, lines: tuple[Line, ...], cases: list[tuple[str, str]]) -> str:
    """Milliseconds of a step from a report, a column for each workload and precision; a dash for none."""
    report = read(file)
    steps = report["steps"] + report["compiled"]
    rows = {
        (row["workload"], row["config"], row["implementation"], row["how"]): row
        for row in steps if row.get("routine", routine) == routine
    }

    def cell(case: tuple[str, str], implementation: str, how: str) -> str:
        if how == "floor":
            return f"{rows[*case, implementation, 'plan']['floor_ms']:.3f}"
        row = rows.get((*case, implementation, how), {})
        if "ms" not in row:  # not tried, or skipped
            return "–"
        ms = f"{row['ms']:.3f}"
        return f"**{ms}**" if how == "plan" else ms

    header = ["", *(f"{WORKLOADS[workload]}, {config}" for workload, config in cases)]
    body = [[label, *(cell(case, *what) for case in cases)] for label, *what in lines]
    return figures(header, body)


WAYS = {
    "one call a tensor": "one call per tensor",
    "PyTorch, DDP's buckets": "PyTorch, DDP's buckets",
    "gather, all-reduce, scatter": "**copied into one buffer, reduced, copied back**",
    "all-reduce of the buffer": "**one buffer, reduced in place**",
}


def reductions() -> str:
    """Milliseconds to sum a model's gradients over two GPUs, by way."""
    rows = read("communication-h200-x2.json")["gradients"]
    ms_of = {(row["workload"], row["way"]): row.get("ms") for row in rows}
    names = ("resnet50", "bert-large")
    lines = ([label, *(f"{ms_of[name, way]:.3f}" for name in names)] for way, label in WAYS.items())
    return figures(["", *(WORKLOADS[name] for name in names)], lines)


MUON = {
    "torch.optim.Muon": "`torch.optim.Muon`", "torch.optim.Muon, graph": "the same, as a CUDA graph",
    "PyTorch, by shape, graph": "PyTorch, all matrices of a shape at once, as a CUDA graph",
    "gram-newton-schulz, standard, graph": "gram-newton-schulz 0.1.6, standard iterations, compiled, as a CUDA graph",
    "gram-newton-schulz, graph": "the same by Gram matrices, fp16",
    "refopt.torch.Muon": "`refopt.torch.Muon`",
    "refopt, merged": "**refopt, 18 launches**",
    "refopt, Gram": "**refopt, by Gram matrices, fp16**",
}


def muon() -> str:
    """Milliseconds of a step over the hidden matrices of two models, and the rate of the products in full."""
    rows = read("muon-h200.json")["steps"]
    by_step = {(row["model"], row["step"]): row for row in rows}
    models = list(dict.fromkeys(row["model"] for row in rows))
    header = ["", *(text for model in models for text in (model, "TFLOP/s"))]
    body = [[label, *(f"{by_step[model, step][what]:.1f}" for model in models for what in ("ms", "tflop_per_s"))]
            for step, label in MUON.items()]
    return figures(header, body)


def shards() -> str:
    """Milliseconds of a sharded step of Adam on two GPUs, the fastest of each kind."""
    rows = [row for row in read("sharding-h200-x2.json")["steps"] if "ms" in row]
    names = ("bert-large", "gpt2-xl")

    def best(name: str, form: str, key: str = "ms") -> str:
        return fastest((r for r in rows if r["workload"] == name and r.get("form", "PyTorch") == form), key)

    theirs = "PyTorch, DDP's buckets and `ZeroRedundancyOptimizer`, all in fp32"
    lines = [[theirs, *(best(name, "PyTorch") for name in names)]]
    for form in ("fp32 gradients", "fp16 gradients"):
        lines.append([f"**refopt, {form}**", *(f"**{best(name, form)}**" for name in names)])
        lines.append(["its collectives alone", *(best(name, form, "communication_floor_ms") for name in names)])
    return figures(["", *(WORKLOADS[name] for name in names)], lines)


def fastest(rows: Iterable[dict[str, Any]], key: str) -> str:
    """A figure of the fastest of some rows."""
    return f"{min(rows, key=lambda row: row['ms'])[key]:.2f}"


def elements() -> str:
    """Milliseconds of a step that is sharded by element on two GPUs, beside others, the fastest of each kind."""
    rows = read("elements-h200-x2.json")["steps"]
    columns = [(name, form) for name in ("bert-large", "gpt2-xl") for form in ("fp32 gradients", "fp16 gradients")]
    lines = []
    for label, way, key in (
        ("PyTorch, flat tensors by hand", "PyTorch, flat", "ms"),
        ("**refopt, by element**", "refopt, by element", "ms"),
        ("its collectives alone", "refopt, by element", "collectives_ms"),
        ("refopt, by tensor", "refopt, by tensor", "ms"),
        ("its collectives alone", "refopt, by tensor", "collectives_ms"),
    ):
        own = ([r for r in rows if (r["workload"], r["form"], r["way"]) == (*column, way)] for column in columns)
        lines.append([label, *(fastest(each, key) for each in own)])
    return figures(["", *(f"{WORKLOADS[name]}, {form}" for name, form in columns)], lines)


def norms() -> str:
    """Milliseconds of a step on two GPUs of routines with norms, of Muon, and of Adam with fewer bytes sent."""
    record, of = read("norm_shards-h200-x2.json"), dict[str, list[str]]()
    for row in record["steps"]:
        label = f"{NORMED[row['optimizer']]}, {row['way'].removeprefix('refopt, ')}"
        of.setdefault(label, []).append(f"{row['ms']:.2f}")
    sums = {row["sums"]: f"{row['ms']:.2f}" for row in record["sums"]}
    return figures(["", "fp32 gradients", "fp16 gradients"], [[label, *ms] for label, ms in of.items()]) + (
        f"\n\nAdam on all ranks takes {sums['float32']} ms with gradients summed in fp32, {sums['float16']} in fp16 "
        f"and {sums['bfloat16']} in\nbf16 (`narrow_sums`), and {sums['of parameters']} if every eighth step averages "
        "parameters instead (`local_steps`).")


def routines() -> str:
    """A line for each routine of the catalogue."""
    lines = [
        ["routine", "what it is", "code", "states", "launches", "fp32", "amp", "source"],
        ["---"] * 5 + ["---:"] * 2 + ["---"],
    ]
    for routine in KNOWN.values():
        title = (importlib.import_module(f"refopt.cpu.{routine.name}").__doc__ or "").partition(":")[0]
        form = routine.merged_form
        required = {slot.name: not slot.optional for slot in routine.slots}
        states = [name for name in (*routine.states, *routine.scalars) if required[name]]
        moved = []
        for param, master in (("float32", None), ("float16", "float32")):
            named = {"params": param, "grads": param, "master_params": master}
            dtypes = (named.get(n, "float32") if n in named or required[n] else None for n in routine.slot_names)
            moved.append(str(routine.bytes([Spec(1, tuple(dtypes))], form)))
        launches = str(routine.forms[form].launches)
        launches += f" + {routine.forms[form].iterated} n" if routine.forms[form].iterated else ""
        names = ", ".join(f"`{name}`" for name in states)
        code = ", ".join(f"[{word}]({path})" for word, path in code_of(routine.name).items())
        lines.append([f"`{routine.name}`", title, code, names, launches, *moved, routine.source])
    return table(lines)


def code_of(name: str) -> dict[str, str]:
    """The file of a routine's formula; of its rule, if it has one; and of the first kernel of a step."""
    first = show.launches_of(show.request(name), [(5, 3)]).steady[0].kernel
    files = {"formula": f"refopt/cpu/{name}.py", "rule": f"refopt/gpu/rules/{name}.py",
             "kernel": next(iter(show.files([first]))).relative_to(ROOT).as_posix()}
    return {word: file for word, file in files.items() if (ROOT / file).exists()}


def with_tables(text: str) -> str:
    """The README with its tables as the report and the catalogue have them."""
    both = [(workload, config) for workload in ("resnet50", "bert-large") for config in ("fp32", "amp")]
    tables = {
        "lars": times("lars-h200.json", "lars_momentum", LARS, both),
        "adamw": times("optimizers-h200.json", "adamw", ADAMW, [*both, ("gpt2-xl", "fp32")]),
        "torch": torch_pages.shown(torch_pages.STEP, torch_pages.step_in_short),
        "routines": routines(),
    }
    for name, rendered in tables.items():
        text = with_section(text, name, rendered)
    return text
