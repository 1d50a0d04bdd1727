"""Every kernel under compute-sanitizer: memcheck, racecheck, initcheck and synccheck.

    python -m benchmarks.sanitizer [--out FILE]

The work is small lists of tensors with empty, odd, misaligned and many-chunk ones, for each routine, each of its forms
and several combinations of dtypes, two steps each, some rounded stochastically; matrices of several shapes for Muon; a
check of the gradients before and an update of the loss scale after a step; casts and coalescing; programs that
accumulate gradients, add up rows, and take norms from sums of tiles; lazy steps of tables: compared with the CPU
reference bit for bit. In the same run, each tool is given the kernels of `benchmarks.planted`, with a defect of its
kind. The exit status is 1 if a tool has something to say of refopt's kernels, or nothing of those, or if a kernel of
refopt was not run.
"""

import argparse
import ast
import math
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.children import run
from benchmarks.planted import DEFECTS
from benchmarks.record import RESULTS, ROOT, begin, save, short_name
from refopt import cpu, gpu
from refopt.catalog import ROUTINES, Routine
from refopt.catalog.workloads import Parameter, Workload
from refopt.checks.dtypes import arithmetic, numpy_dtype
from refopt.cli.verify.around import PLAIN, cast_rows, coalesce_rows
from refopt.cpu.codes import codes_of
from refopt.cpu.lazy import LAZY
from refopt.cpu.reduce import TILE
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments, assert_same
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import PlacedCase, kernels
from refopt.program import Op, Program, Var, amp_program, bind, passes, placement, step_program

LIMIT, PLANTED_LIMIT = 500.0, 120.0  # seconds of a part, and of a planted defect
PARTS = 4  # of the work, each in a process of its own
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SIZES = [1, 0, 255, 1025, 70_000, 8192, 1_100_000, 3]
# dtypes of parameter, gradient, velocity and, if there is one, master
DTYPES = (
    ("float32", "float32", "float32"),
    ("float16", "float16", "float32", "float32"),
    ("float16", "float32", "float16"),
    ("bfloat16", "bfloat16", "float32", "float32"),
    ("float64", "float16", "float64"),
    ("bfloat16", "bfloat16", "float32", "uint16"),
)
BY_CHANCE = ("bfloat16", "bfloat16", "bfloat16")
AROUND = "around a step"
MUON = "muon"
TABLES = [(1, 1), (7, 3), (200, 128), (40, 300)]
MATRICES = [(1, 1), (17, 33), (130, 70), (64, 64), (200, 300)]
# dtypes of parameters, gradients, momentum and, if there is one, master, what the iterations compute in, and restarts;
# squares are iterated as without
MUONS = (
    ("float32", "float32", "float32", None, "bfloat16", None),
    ("bfloat16", "bfloat16", "float32", "uint16", "float16", ()),
    ("float32", "bfloat16", "float32", None, "float32", ()),
    ("float64", "float32", "float64", None, "float64", ()),
)


def work(names: list[str], device: str = "gpu") -> None:
    """Run everything once; an AssertionError if it is not what the CPU reference gives."""
    machine = gpu.device(device)
    for name in names:
        if name == AROUND:
            iteration(machine)
            moves(machine)
            programs(machine)
            lazy(machine)
        elif name == MUON:
            muon(machine)
        else:
            steps(ROUTINES[name], machine)


def steps(routine: Routine, machine: Any) -> None:
    """A routine in all its forms."""
    listed: list[tuple[tuple[str, ...], dict[str, Any]]] = [(dtypes, {}) for dtypes in DTYPES]
    if routine.name not in ("lars_momentum", "adam", "lamb"):
        listed = listed[:2]
    if "rounding" in routine.choices:
        listed.append((BY_CHANCE, {"rounding": "stochastic"}))
    optional = tuple(slot.name for slot in routine.slots if slot.optional and slot.name != "master_params")
    step = step_of(routine)
    made = partial(make, routine, SIZES, steps=[step, step], optional=optional)
    cases = [(" ".join([*dtypes, *choices]), made(dtypes, **choices), (0, 1)) for dtypes, choices in listed]
    if routine.elementwise and routine.states:
        case = made(rounding="stochastic")
        codes = {slot.name: codes_of(slot).coded for slot in routine.slots if slot.name in routine.states}
        coded = {name: list(map(code, case.slots[name])) for name, code in codes.items() if case.slots[name]}
        cases.append(("states in 8 bits", case.replace(**coded), (0,)))
    for label, case, shifts in cases:
        expected = reference(case)
        for form in routine.forms:
            for shift in shifts:
                assert_same(expected, kernels(form, machine, (shift,))(case), f"{form}, {shift} off")
                print(routine.name, label, form, f"{shift} off: equal", flush=True)


def iteration(machine: Any) -> None:
    """A gradient check, a step that takes what it found, and the loss scale after it; finite gradients, then an inf."""
    for bad in (0.0, np.inf):
        case = make(ROUTINES["adamw"], SIZES, DTYPES[0], steps=[{}])
        case.grads[3][7] = bad
        host = [np.array([8], np.float32), np.array([3], np.int32), np.array([1], np.int32)]
        placed = PlacedCase(machine, case)
        device = [machine.to_device(x) for x in host]
        check = gpu.gradient_check(placed.grads, loss_scale=device[0], max_norm=1.0)
        step = placed.plan("merged", lr=0.1, grad_factor=check.grad_factor, found_inf=check.found_inf)
        after = gpu.loss_scaling(check.found_inf, *device)
        checked = cpu.check_gradients(case.grads, loss_scale=host[0], max_norm=1.0)
        positional, named = arguments(case.routine, case.slots)
        for _ in range(2):
            for each in (check, step, after):
                each()
            cpu.merged_adamw(*positional, **named, lr=0.1, grad_factor=checked.grad_factor, found_inf=checked.found_inf)
            cpu.update_loss_scaling(checked.found_inf, *host)
            checked = cpu.check_gradients(case.grads, loss_scale=host[0], max_norm=1.0)
        written = {slot.name: case.lists()[slot.name] for slot in case.routine.slots if slot.written}
        assert_same(written, placed.outcome(), "iteration")
        assert [x.copy_to_host().tobytes() for x in device] == [x.tobytes() for x in host]
        print("gradient check, step, loss scale: equal", flush=True)


def muon(machine: Any) -> None:
    """Two steps of two iterations of Muon and NorMuon, of matrices of several shapes."""
    for name, (*dtypes, master, compute, restarts) in product(("muon", "normuon"), MUONS):
        random = np.random.default_rng(0)
        host = [[random.normal(size=shape).astype(numpy_dtype(dtype)) for shape in MATRICES] for dtype in dtypes]
        if name == "normuon":
            host.append([np.zeros((rows, 1), arithmetic(dtypes[0])) for rows, _ in MATRICES])
        named = {} if master is None else {"master_params": [np.zeros(shape, master) for shape in MATRICES]}
        placed = [[machine.to_device(x) for x in arrays] for arrays in (*host, *named.values())]
        numbers = {"lr": 0.1, "iterations": 2, "compute": compute, "restarts": restarts}
        count = len(host)
        plan = gpu.plan(name, *placed[:count], **dict(zip(named, placed[count:], strict=True)), **numbers)
        for _ in range(2):
            plan()
            getattr(cpu, f"merged_{name}")(*host, **named, **numbers)
        expected = [x.tobytes() for arrays in (*host, *named.values()) for x in arrays]
        assert [x.copy_to_host().tobytes() for arrays in placed for x in arrays] == expected, dtypes
        print(name, *dtypes, *filter(None, (master,)), f"in {compute}: equal", flush=True)


def moves(machine: Any) -> None:
    """Casts, gathers and scatters."""
    listed = Workload("sizes", tuple(Parameter(str(size), (size,)) for size in SIZES if size), "")
    for dtype in PLAIN:
        for row in (*cast_rows(listed, dtype, machine), *coalesce_rows(listed, dtype, machine)):
            assert row.ok, row
            print(f"{row.routine} {row.dtype} {row.form}: equal", flush=True)


def programs(machine: Any) -> None:
    """A step of two micro-steps, one of sparse gradients, with some rows more than once, and tiles that are joined.

    Each parameter is of one of `SIZES`, and of as many rows of three.
    """
    random = np.random.default_rng(0)
    wide = [(f"{size}", (size, 3)) for size in SIZES if 0 < size < 1 << 17]
    numbers = {"lr": 0.1}
    joined = joining([-(-size // TILE) for size in SIZES if size])
    for name, program in {
        "accumulated": amp_program(wide, "adam", accumulate=2, max_norm=1.0, **numbers),
        "sparse": step_program(wide, "adam", sparse=[wide[0][0], wide[-2][0]], **numbers),
        "no": joined,
        **{name: parted(name, wide) for name in ("lamb", "lars_momentum", "novograd")},
    }.items():
        shapes = {key: var.shape for key, var in joined.vars.items()} if program is joined else dict(wide)
        params = {key: random.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}
        names = [key for op in program.main if op.type == "backward" for key in op.outputs["grads"]]
        grads = {key: gradient(program.vars[key], random) for key in names}
        expected = ran(partial(bind, program), {key: x.copy() for key, x in params.items()}, grads)
        ways: dict[str, Callable[..., Any]] = {"op for op": partial(bind, program, backend="gpu")}
        if name == "accumulated":
            ways["on streams"] = partial(placement.bind_schedule, placement.on_streams(program))
        for way, call in ways.items():
            assert ran(call, {key: machine.to_device(x) for key, x in params.items()}, grads) == expected, (name, way)
            print(f"{name} gradients, {way}: equal", flush=True)


def parted(name: str, shapes: list[tuple[str, tuple[int, ...]]]) -> Program:
    """A step whose update takes norms from joined sums of tiles, as that of tensors that are cut."""
    numbers = {"mu": 0.9} if name == "lars_momentum" else {}
    program = passes.fuse_optimizer(step_program(shapes, name, lr=0.1, **numbers), form="merged").program
    *first, update = program.main
    routine, order = ROUTINES[name], update.inputs["params"]
    tiles = [-(-math.prod(program.vars[x].shape) // TILE) for x in order for _ in range(routine.norms)]
    join = joining(tiles).main[0].replace(inputs={"tiles": ("tiles",)})
    vars = {key: Var(key, (size,), "float32") for key, size in (("tiles", sum(tiles)), ("sums", len(tiles)))}
    places = [range(k, k + routine.norms) for k in range(0, len(tiles), routine.norms)]
    starts = [tuple(sum(tiles[:n]) for n in row) for row in places]
    outputs = {"tiles": ("tiles",), **{slot: update.inputs[slot] for slot in routine.states}}
    attrs = {**update.attrs, "routine": name, "positions": tuple(starts)}
    second = update.replace(
        inputs={**update.inputs, "sums": ("sums",)}, attrs={**update.attrs, "positions": tuple(map(tuple, places))}
    )
    main = [*first, update.replace(type="norm_tiles", outputs=outputs, attrs=attrs), join, second]
    return program.replace(vars={**program.vars, **vars}, main=main)


def lazy(machine: Any) -> None:
    """Two lazy steps of each routine, of tables of several widths, by gradients with repeated rows."""
    for name, count in product(LAZY, ("global", "row")):
        random, row = np.random.default_rng(0), ROUTINES[name]
        params = [random.normal(size=shape).astype(np.float32) for shape in TABLES]
        states = [
            [np.full(len(x) if count == "row" else 1, 0.9, np.float32) if slot.scalar else abs(x) for x in params]
            for slot in row.slots[2:] if not slot.optional
        ]
        indices = [random.integers(0, max(1, len(x) // 2), 2 * len(x)) for x in params]
        values = [random.normal(size=(len(rows), *x.shape[1:])).astype(np.float32)
                  for rows, x in zip(indices, params, strict=True)]
        host = [params, indices, values, *states]
        placed = [[machine.to_device(x) for x in arrays] for arrays in host]
        numbers = {"lr": 0.1, **({"mu": 0.9} if name == "momentum" else {})}
        plan = gpu.lazy_plan(name, *placed, count=count, **numbers)
        for _ in range(2):
            plan()
            cpu.merged_lazy(name, *host, count=count, **numbers)
        expected = [x.tobytes() for arrays in host for x in arrays]
        assert [x.copy_to_host().tobytes() for arrays in placed for x in arrays] == expected, (name, count)
        print(f"lazy {name}, scalars {count}: equal", flush=True)


def joining(counts: list[int]) -> Program:
    """A program that joins sums of tiles, which ranks have added up: of each tensor that is cut, so many."""
    shapes = {"tiles": (sum(counts),), "sums": (len(counts),)}
    attrs = {"counts": tuple(counts), "positions": tuple(range(len(counts)))}
    op = Op("join_tiles", {key: (key,) for key in shapes}, {"sums": ("sums",)}, attrs, "optimize")
    return Program({key: Var(key, shape, "float32", True) for key, shape in shapes.items()}, (), [op])


def gradient(var: Var, random: np.random.Generator) -> Any:
    """What a backward op brings: values, or for a sparse gradient rows and which they are."""
    if not var.sparse:
        return random.normal(size=var.shape).astype(var.dtype)
    rows = random.integers(0, var.shape[0], 2 * var.shape[0])
    return rows, random.normal(size=(rows.size, *var.shape[1:])).astype(var.dtype)


def ran(call: Callable[..., Any], arrays: dict[str, Any], grads: dict[str, Any]) -> dict[str, bytes]:
    """All that lives from step to step, after two steps."""
    runnable = call(arrays, gradients=lambda name, step: grads[name])
    bound = getattr(runnable, "bound", runnable)
    if bound is runnable:
        runnable.startup()
    for _ in range(2):
        runnable.step()
    return {key: bound.read(key).tobytes() for key, var in bound.program.vars.items() if var.persistable}


# Under the tools.


def run_under(tool: str, arguments: list[str], seconds: float = LIMIT) -> tuple[int | str, str]:
    """Exit status and output of a command of Python's under a tool; "timed out" for one that has to be ended."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "20", sys.executable]
    return run([*command, *arguments], seconds)


def summary_of(output: str) -> str:
    lines = [line for line in output.splitlines() if "SUMMARY" in line]
    return lines[-1].strip("= ") if lines else "no summary"


def clean(tool: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Some routines under a tool, which must have nothing to say."""
    status, output = run_under(tool, ["-m", "benchmarks.sanitizer", "--work", *names])
    summary, equal = summary_of(output), sum(line.endswith(": equal") for line in output.splitlines())
    ok = status == 0 and equal > 0 and re.search(r"SUMMARY: 0 (errors|hazards displayed)", summary) is not None
    print(f"{tool}, {', '.join(names)}: exit status {status}, {equal} equal, {summary}", flush=True)
    if not ok:
        print("\n".join(output.splitlines()[-60:]), flush=True)
    return {"tool": tool, "routines": names, "exit_status": status, "equal": equal, "summary": summary, "ok": ok}


def planted(name: str) -> dict[str, Any]:
    """A kernel with a defect, which its tool must report."""
    defect = DEFECTS[name]
    status, output = run_under(defect.tool, ["-m", "benchmarks.planted", name], PLANTED_LIMIT)
    reported = re.search(defect.report, output)
    print(f"{defect.tool}, planted {name}: {reported[0] if reported else 'NOT REPORTED'}", flush=True)
    if not reported:
        print("\n".join(output.splitlines()[-30:]), flush=True)
    lines = [line.strip("= ") for line in output.splitlines() if line.startswith("=")]
    return {
        "tool": defect.tool, "kernel": name, "exit_status": status, "reported": reported is not None,
        "lines": lines[:6],
    }


def silent_tools(defects: list[dict[str, Any]]) -> list[str]:
    """Tools that have reported none of the defects planted for them: what they do not say proves nothing."""
    return [tool for tool in TOOLS if not any(row["reported"] for row in defects if row["tool"] == tool)]


@cache
def all_kernels() -> frozenset[str]:
    """The names of all kernels of refopt: functions that are decorated as such, and the elementwise routines."""
    names = {row.merged_name for row in ROUTINES.values() if row.elementwise}
    for path in (ROOT / "refopt").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            if any(isinstance(d, ast.Call) and getattr(d.func, "id", "") == "kernel" for d in decorators):
                names.add(node.name)  # type: ignore[attr-defined]
    return frozenset(names)


def judged(report: dict[str, Any]) -> dict[str, str]:
    """What is wrong with a report; empty if its silence proves that the kernels are sound."""
    wrong = {f"{row['tool']}, {', '.join(row['routines'])}": row["summary"] for row in report["runs"] if not row["ok"]}
    for tool in silent_tools(report["planted"]):
        wrong[tool] = "it has not reported the defect planted for it"
    if missing := all_kernels() - {note["name"] for note in report["kernels"]}:
        wrong["kernels"] = f"not run: {', '.join(sorted(missing))}"
    return wrong


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/sanitizer-DEVICE.json")
    parser.add_argument("--work", nargs="*", metavar="ROUTINE", help="the work itself, without a tool")
    args = parser.parse_args()
    if args.work is not None:
        work(args.work)
        return 0
    if shutil.which("compute-sanitizer") is None:
        parser.error("expected compute-sanitizer on the path, got none")
    report = begin("benchmarks.sanitizer") | {"what": "sanitizer", "planted": [], "runs": []}
    out = args.out or RESULTS / f"sanitizer-{short_name(report['device'])}.json"
    parts = [(*ROUTINES, AROUND, MUON)[k::PARTS] for k in range(PARTS)]
    with ThreadPoolExecutor(len(TOOLS) * PARTS) as pool:
        waiting = {pool.submit(planted, name): "planted" for name in DEFECTS}
        waiting |= {pool.submit(clean, tool, part): "runs" for part in parts for tool in TOOLS}
        for done in as_completed(waiting):
            report[waiting[done]].append(done.result())
            save(report, out)
    report["failures"] = judged(report)
    save(report, out)
    for name, reason in report["failures"].items():
        print(f"FAILED {name}: {reason}")
    return int(bool(report["failures"]))


if __name__ == "__main__":
    sys.exit(main())
