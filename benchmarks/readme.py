"""The tables of README.md: figures of the records, and rows of the catalogue."""

import importlib
import json
from pathlib import Path

from benchmarks import sections, torch_pages
from benchmarks.sections import with_section
from refopt.catalog import KNOWN, Spec
from refopt.gpu import show

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
WORKLOADS = {"resnet50": "ResNet-50", "bert-large": "BERT-large", "gpt2-xl": "GPT-2 XL"}
Line = tuple[str, str, str]  # label, implementation, how it is enqueued; a floor stands under the form it counts for
LARS: tuple[Line, ...] = (
    ("PyTorch, a loop over tensors", "loop", "eager"),
    ("PyTorch, `_foreach` operations", "foreach_addcmul", "eager"),
    ("the same as a CUDA graph", "foreach_addcmul", "graph"),
    ("`torch.compile`, as a CUDA graph", "torch.compile", "graph"),
    ("**refopt, two launches**", "two_launches", "plan"),
    ("floor", "two_launches", "floor"),
    ("**refopt, norm carried over**", "carried_norm", "plan"),
    ("floor", "carried_norm", "floor"),
)
ADAMW: tuple[Line, ...] = (
    ("PyTorch, `foreach`, `capturable`", "torch foreach", "eager"),
    ("PyTorch, `fused`, `capturable`", "torch fused", "eager"),
    ("the same as a CUDA graph", "torch fused", "graph"),
    ("`torch.compile`, as a CUDA graph", "torch.compile", "graph"),
    ("**refopt, one launch**", "refopt", "plan"),
    ("floor", "refopt", "floor"),
)


def table(file: str, routine: str, lines: tuple[Line, ...], cases: list[tuple[str, str]]) -> str:
    """Milliseconds of a step from a report, a column for each workload and precision; a dash for none."""
    report = json.loads((RESULTS / file).read_text())
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
    return sections.table([header, ["---"] + ["---:"] * len(cases), *body])


WAYS = {
    "one call a tensor": "one call per tensor",
    "PyTorch, DDP's buckets": "PyTorch, DDP's buckets",
    "gather, all-reduce, scatter": "**copied into one buffer, reduced, copied back**",
    "all-reduce of the buffer": "**one buffer, reduced in place**",
}


def reductions() -> str:
    """Milliseconds to sum a model's gradients over two GPUs, by way."""
    rows = json.loads((RESULTS / "communication-h200-x2.json").read_text())["gradients"]
    ms_of = {(row["workload"], row["way"]): row.get("ms") for row in rows}
    names = ("resnet50", "bert-large")
    lines = [["", *(WORKLOADS[name] for name in names)], ["---"] + ["---:"] * len(names)]
    lines += [[label, *(f"{ms_of[name, way]:.3f}" for name in names)] for way, label in WAYS.items()]
    return sections.table(lines)


MUON = {
    "torch.optim.Muon": "`torch.optim.Muon`", "torch.optim.Muon, graph": "the same as a CUDA graph",
    "PyTorch, by shape, graph": "PyTorch, all matrices of a shape at once, as a CUDA graph",
    "PyTorch, by shape, compiled, graph": "the same by `torch.compile`",
    "QuACK, by shape, graph": "the same with the products of QuACK 0.6.5, symmetric ones by half",
    "refopt.torch.Muon": "`refopt.torch.Muon`",
    "refopt, merged": "**refopt, 18 launches**",
}


def muon() -> str:
    """Milliseconds of a step over the hidden matrices of two models, and the rate of the products in full."""
    rows = json.loads((RESULTS / "muon-h200.json").read_text())["steps"]
    by_step = {(row["model"], row["step"]): row for row in rows}
    models = list(dict.fromkeys(row["model"] for row in rows))
    header = ["", *(text for model in models for text in (model, "TFLOP/s"))]
    body = [[label, *(f"{by_step[model, step][what]:.1f}" for model in models for what in ("ms", "tflop_per_s"))]
            for step, label in MUON.items()]
    return sections.table([header, ["---"] + ["---:"] * (len(header) - 1), *body])


def shards() -> str:
    """Milliseconds of a sharded step of Adam on two GPUs, the fastest of each kind."""
    rows = [row for row in json.loads((RESULTS / "sharding-h200-x2.json").read_text())["steps"] if "ms" in row]
    names = ("bert-large", "gpt2-xl")

    def best(name: str, form: str, key: str = "ms") -> str:
        own = [row for row in rows if row["workload"] == name and row.get("form", "PyTorch") == form]
        return f"{min(own, key=lambda row: row['ms'])[key]:.2f}"

    lines = [["", *(WORKLOADS[name] for name in names)], ["---"] + ["---:"] * len(names)]
    theirs = "PyTorch, DDP's buckets and `ZeroRedundancyOptimizer`, all in fp32"
    lines.append([theirs, *(best(name, "PyTorch") for name in names)])
    for form in ("fp32 gradients", "fp16 gradients"):
        lines.append([f"**refopt, {form}**", *(f"**{best(name, form)}**" for name in names)])
        lines.append(["its collectives alone", *(best(name, form, "communication_floor_ms") for name in names)])
    return sections.table(lines)


def elements() -> str:
    """Milliseconds of a step that is sharded by element on two GPUs, beside others, the fastest of each kind."""
    rows = json.loads((RESULTS / "elements-h200-x2.json").read_text())["steps"]
    columns = [(name, form) for name in ("bert-large", "gpt2-xl") for form in ("fp32 gradients", "fp16 gradients")]
    lines = [["", *(f"{WORKLOADS[name]}, {form}" for name, form in columns)], ["---"] + ["---:"] * len(columns)]
    for label, way, key in (
        ("PyTorch, flat tensors by hand", "PyTorch, flat", "ms"),
        ("**refopt, by element**", "refopt, by element", "ms"),
        ("its collectives alone", "refopt, by element", "collectives_ms"),
        ("refopt, by tensor", "refopt, by tensor", "ms"),
    ):
        cells = []
        for column in columns:
            own = [row for row in rows if (row["workload"], row["form"], row["way"]) == (*column, way)]
            cells.append(f"{min(own, key=lambda row: row['ms'])[key]:.2f}")
        lines.append([label, *cells])
    return sections.table(lines)


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
    return sections.table(lines)


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
        "lars": table("lars-h200.json", "lars_momentum", LARS, both),
        "adamw": table("optimizers-h200.json", "adamw", ADAMW, [*both, ("gpt2-xl", "fp32")]),
        "torch": torch_pages.shown(torch_pages.STEP, torch_pages.step_in_short),
        "routines": routines(),
    }
    for name, rendered in tables.items():
        text = with_section(text, name, rendered)
    return text
