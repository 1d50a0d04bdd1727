"""Every kernel, compiled for the compute capabilities of GPUs that nobody has here, and assembled by ``ptxas``.

    python -m benchmarks.capabilities [-n PROCESSES] [--out FILE]

Needs no GPU. Of each kernel and capability the record has the registers of a thread, and the bytes of it that lie in
local memory; `faults` says what must not be, and the exit status is 1 if anything is.
"""

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.record import RESULTS, begin, save, version_of
from refopt import gpu
from refopt.catalog import ROUTINES, Routine
from refopt.catalog.data import DTYPES, offered
from refopt.checks import cast_type
from refopt.checks.dtypes import REMAINDERS, SIZES
from refopt.gpu import cast, exactness, loss_scale, words
from refopt.gpu.gradient_check import checker, finisher
from refopt.gpu.machine import dotted
from refopt.gpu.show import launches_of, request
from refopt.gpu.target import MEASURED, Compilable, signature_of, spelled
from refopt.program.gpu import mixed_precision, sparse

CAPABILITIES = (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)
REALS = "float32", "float64"  # what kernels compute in
VECTORS = {"float32": "v4.f32", "float64": "v2.f64", "float16": "v2.b32", "bfloat16": "v2.b32", "uint16": "v2.b32",
           "int8": "b32"}
SINGLES = {"float32": "f32", "float64": "f64", "float16": "b16", "bfloat16": "b16", "uint16": "b16", "int8": "b8"}
BLOCK = re.compile(r"// begin inline asm(.*?)// end inline asm", re.DOTALL)


class Case(NamedTuple):
    """A kernel and the types of its arguments.

    ``double`` says whether it is to compute in fp64, ``moved`` how often it at least has each access to memory, such as
    ``ld.global.v4.f32``, by the table of its tensors; atomics that add are in no order in the first rungs alone.
    """

    label: str
    kernel: Compilable
    signature: tuple
    double: bool = False
    moved: tuple[tuple[str, int], ...] = ()


class Assembled(NamedTuple):
    """What ``ptxas`` says of a kernel: registers of a thread, and bytes of local memory that it takes."""

    registers: int
    local: int


def cases() -> Iterator[Case]:
    """All kernels, each once."""
    seen = set()
    for case in [*of_routines(), *of_ladders(), *others()]:
        if (key := (case.kernel, *spelled(case.signature))) not in seen:
            seen.add(key)
            yield case


def of_routines() -> Iterator[Case]:
    """Each routine in each form and dtype configuration, with its usual choices and with each other one."""
    for routine in ROUTINES.values():
        optional = [slot.name for slot in routine.slots if slot.optional and slot.name != "master_params"]
        options: list[tuple[list[str], dict[str, Any]]] = [([], {}), *(([name], {}) for name in optional)]
        for name, values in routine.choices.items():
            options += [([], {name: value}) for value in values[1:] if name != "rounding"]
        for dtype in (name for name in DTYPES if offered(routine, name)):
            for form in dict.fromkeys([routine.merged_form, *routine.forms]):
                for states, choices in options:
                    yield from of_routine(routine, dtype, form, states, choices)


def of_routine(
    routine: Routine, dtype: str, form: str, states: list[str] = [], choices: dict[str, Any] = {}  # noqa: B006
) -> Iterator[Case]:
    """The kernels of a form of a routine."""
    asked = request(routine.name, dtype, form, states, choices)
    for launched in launches_of(asked, [(5,)]).prepared:
        chosen = [f"{name}={value}" for name, value in choices.items()]
        computes = launched.kernel.name not in ("fetch_scalars", "settle_scalars")
        moved = tables_of(routine, dict(asked.dtypes)) if computes and routine.elementwise else {}
        name = launched.kernel.name if computes else f"{launched.kernel.name} of {routine.name}"
        label = f"{name} {'-'.join([form, dtype, *states, *chosen])}"
        double = DTYPES[dtype].param == "float64"
        yield Case(label, launched.kernel, signature_of(launched.args), double, tuple(moved.items()))


def tables_of(routine: Routine, dtypes: dict[str, str]) -> dict[str, int]:
    """The loads and stores of a thread's eight elements of a row: all there and aligned, and one by one."""
    joined = dtypes.get("master_params") in REMAINDERS
    if joined:
        read = [*dtypes]  # a parameter and its remainder are loaded together
    else:
        read = [name for name in dtypes if name != ("params" if "master_params" in dtypes else "master_params")]
    tensors = {slot.name: slot.written for slot in routine.slots if not slot.scalar and slot.name in dtypes}
    moved: Counter = Counter()
    for access, names in (("ld", read), ("st", [name for name, written in tensors.items() if written])):
        for name in (name for name in names if name in tensors):
            dtype = dtypes[name]
            if dtype == "uint8":  # codes of four elements, and the scales of groups, in whole rows and in parts
                moved.update({f"{access}.global.b32": 4, f"{access}.global.f32": 4})
                continue
            moved[f"{access}.global.{VECTORS[dtype]}"] += 4 if dtype == "float64" else 2
            single = SINGLES[dtype]
            if joined and access == "ld" and name in ("params", "master_params"):  # to words
                single = single.replace("b", "u" if name == "params" else "s")
            moved[f"{access}.global.{single}"] += 8
    return moved


def of_ladders() -> Iterator[Case]:
    """Each rung of the ladders of optimizers, on tensors of the executor."""
    with gpu.use("executor"):
        x = [gpu.to_device(np.ones(5, np.float32))]
        out, half = gpu.to_device(np.zeros(2, np.float32)), gpu.to_device(np.zeros(128, np.float16))
        one = np.float32(1)
        given = {"adam": (x, x, x, x, (one,) * 6), "lars": (x, x, x, (one,) * 5), "lamb": (x, x, x, x, (one,) * 7),
                 "global_norm": (x, out, (one,) * 2), "coalesce": (x, half, one)}
        for name, args in given.items():
            for rung, launches in import_module(f"refopt.gpu.ladder.{name}").RUNGS.items():
                for launch in launches(*args):
                    yield Case(f"{launch.kernel.name} {rung}", launch.kernel, signature_of(launch.args))


def others() -> Iterator[Case]:
    """Casts, moves, gradient checks, loss scales, and what programs add."""

    def case(label: str, kernel: Compilable, *types: str, double: bool = False) -> Case:
        return Case(f"{kernel.name} {label}".strip(), kernel, types, double)

    for source in SIZES:
        for target in SIZES:
            for scale in ("", "float32", "float64"):
                real = cast_type(source, target)
                if (source != target or scale) and scale in ("", np.dtype(real).name):
                    kernel = cast.caster(source, target, scale)
                    double = "float64" in (source, target)
                    name = f"{source}-{target}-{scale or 'unscaled'}"
                    yield case(name, kernel, "int64[2]", "int64[2]", "int64", double=double)
        for target in REALS:
            for adder in (mixed_precision.adder, sparse.adder):
                made = adder(source, target)
                count = made.function.__code__.co_argcount
                yield case(f"{source}-{target}", made, *["int64"] * count, double="float64" in (source, target))
        for real in REALS[source == "float64" :]:
            made, sums = checker(source, np.dtype(real).type), f"{real}[2]"
            tables = "int64[1]", "int64[1]", "int64[2]", "int64[2]", "uint32[1]"
            yield case(f"{source}-{real}", made, *tables, sums, sums, "int32[1]", double=real == "float64")
    for name in REALS:
        finish = finisher(np.dtype(name).type)
        numbers = f"{name}[1]"
        types = f"{name}[2]", "int64", "int32[1]", numbers, "int64", numbers, "float32[1]", numbers
        yield case(name, finish, *types, double=name == "float64")
    numbers = "float32[1]", "float32[1]", "int32[1]", "int32[1]", "float32[1]", "int64", "int64"
    yield case("", loss_scale.updater(), *numbers)
    yield case("", words.merged_move, "int64[2]", "int64[2]", double=True)  # words of 16 bytes are pairs of fp64
    yield case("", words.fill, "int64", "int64", "int64")


def accesses(ptx: str) -> Counter:
    """How often each load and store stands in the inline blocks of a PTX text; hints to the cache are left out."""
    found = (re.findall(r"\b(?:ld|st)\.global[\w.:]*", block) for block in BLOCK.findall(ptx))
    return Counter(name.replace(".L2::cache_hint", "") for names in found for name in names)


def faults(case: Case, ptx: str, measured: str) -> list[str]:
    """What is wrong with the PTX of a kernel, beside that for the GPUs that it has run on."""
    wrong = []
    if empty := sum(not block.strip() for block in BLOCK.findall(ptx)):
        wrong.append(f"{empty} inline blocks are empty")
    if not case.kernel.contract:
        wrong += [str(found) for found in exactness.read(ptx, case.double) if "order" not in found.why]
    now, then = accesses(ptx), accesses(measured)
    if now.keys() != then.keys():
        wrong.append(f"accesses: expected {', '.join(sorted(then))}, got {', '.join(sorted(now))}")
    wrong += [f"{name}: expected at least {n}, got {now[name]}" for name, n in case.moved if now[name] < n]
    return wrong


@lru_cache
def ptxas() -> str | None:
    """NVIDIA's assembler: that of its wheel, or one on the path."""
    wheels = [Path(sysconfig.get_path("purelib"), "nvidia", name, "bin", "ptxas") for name in ("cu13", "cuda_nvcc")]
    return next((str(path) for path in wheels if path.exists()), None) or shutil.which("ptxas")


def assembled(ptx: str) -> Assembled:
    """What ``ptxas`` makes of a PTX text, for the target that the text names.

    Raises:
        RuntimeError: what it says, if it does not take the text.
    """
    target = re.search(r"\.target (sm_\w+)", ptx)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        command = [ptxas() or "ptxas", "-v", f"-arch={target and target[1]}", path, "-o", path.with_suffix(".cubin")]
        later = ["-c"] if ".extern .func" in ptx else []  # what NVIDIA's library for grids has is linked later
        done = subprocess.run(command + later, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    local = map(int, re.findall(r"(\d+) bytes (?:stack frame|spill stores)", done.stderr))
    (registers,) = re.findall(r"Used (\d+) registers", done.stderr)
    return Assembled(int(registers), max(local))


def judged(case: Case, capabilities: tuple = CAPABILITIES) -> tuple[dict[str, Assembled], list[str]]:
    """What each capability takes of a kernel, and what is wrong, with the capability in front."""
    measured = case.kernel.ptx(case.signature, MEASURED)
    most = assembled(measured).local
    taken, wrong = {}, []
    for capability in capabilities:
        ptx = measured if capability == MEASURED else case.kernel.ptx(case.signature, capability)
        said = faults(case, ptx, measured)
        try:
            taken[dotted(capability)] = found = assembled(ptx)
            if found.local > most:
                said.append(f"local memory: expected at most {most} bytes, got {found.local}")
        except RuntimeError as error:
            said.append(str(error))
        wrong += [f"{case.label}: {dotted(capability)}: {text}" for text in said]
    return taken, wrong


def judged_apart(number: int, capabilities: tuple = CAPABILITIES) -> tuple[dict[str, Assembled], list[str]]:
    """`judged` for a kernel by its number among `cases`, which another process has too."""
    return judged(_every()[number], capabilities)


def compilers(count: int | None = None) -> Any:
    """Processes for `judged_apart`, which begin anew now and then: a compiler keeps what it has made."""
    return get_context("spawn").Pool(count, maxtasksperchild=30)


@lru_cache
def _every() -> list[Case]:
    return list(cases())


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=None, metavar="PROCESSES", help="default: one for each processor")
    parser.add_argument("--out", type=Path, default=RESULTS / "capabilities.json", metavar="FILE")
    options = parser.parse_args()
    report = begin("benchmarks.capabilities")
    report["assembler"] = version_of("nvidia-cuda-nvcc")
    report["capabilities"] = list(map(dotted, CAPABILITIES))
    every, rows, wrong = _every(), {}, []
    with compilers(options.n) as pool:
        for case, (taken, said) in zip(every, pool.imap(judged_apart, range(len(every)), chunksize=4), strict=True):
            rows[case.label] = {name: list(found) for name, found in taken.items()}
            wrong += said
            print("\n".join(said), end="\n" if said else "", flush=True)
    report["kernels_compiled"], report["wrong"] = len(every), wrong
    report["registers and local bytes"] = rows
    save(report, options.out)
    print(f"{len(every)} kernels for {len(CAPABILITIES)} capabilities: {len(wrong) or 'nothing'} wrong; {options.out}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
