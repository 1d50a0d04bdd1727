"""What every report says of itself: command, date, device, versions, and digests of the code that it measured.

A report begins with `begin`, which has the kernels noted that this process and its children compile for a GPU; `save`
adds what has been noted so far. `benchmarks.records` tells from the notes and digests whether a report still holds.
"""

import argparse
import ast
import datetime
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import pkgutil
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from refopt import __version__
from refopt.checks.files import replaced
from refopt.gpu import notes

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "numpy", "numba", "numba-cuda", "llvmlite", "ml_dtypes", "torch", "jax", "cupy", "nccl4py", "cuda-bindings",
    "quack-kernels", "gram-newton-schulz",
)
# What they hold is written into reports, and changes nothing that is measured.
NOT_MEASURED = ("refopt", "benchmarks.record", "benchmarks.records", "benchmarks.table")

SEALED = "code", "compiler", "kernels"


def begin(
    module: str, command: str = "", folder: str | Path | None = None, also: Iterable[Path] = ()
) -> dict[str, Any]:
    """The head of a report, and from here on notes of the kernels that are compiled for a GPU.

    Args:
        module: what measures, such as ``benchmarks.lars``; it and what it imports of its own package are the sources.
        command: how to make the report; by default this process's own.
        also: further sources.
        folder: where notes go; by default, where the environment has them go, or a new folder.
    """
    folder = folder or os.environ.get("REFOPT_KERNELS") or tempfile.mkdtemp(prefix="refopt-kernels-")
    os.environ["REFOPT_KERNELS"] = str(folder)
    return {
        "command": command or shlex.join(["python", "-m", module, *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **machine(),
        "versions": {"refopt": __version__, "python": platform.python_version()} | versions(),
        "system": platform.platform(),
        "sources": digests([*closure(module), *also]),
    }


def save(report: dict[str, Any], out: Path) -> None:
    """As JSON with a line for each innermost list or object, and NaN and infinity as strings; kernels come last."""
    if folder := os.environ.get("REFOPT_KERNELS"):
        report["kernels"] = noted = notes.read(folder)
        report["code"] = code_digest(noted)
    write(report, out)


def by_parts(doc: str | None, name: str, parts: Mapping[str, Callable[[], Iterable[dict[str, Any]]]]) -> None:
    """A command that makes the record of that name: each part's rows, printed and saved as they come."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help=f"default: benchmarks/results/{name}-DEVICE.json")
    options, module = parser.parse_args(), f"benchmarks.{name}"
    report: dict[str, Any] = begin(module) | {"what": name}
    out = options.out or RESULTS / f"{name}-{short_name(report['device'])}.json"
    for part, rows in parts.items():
        report[part] = []
        for row in rows():
            report[part].append(row)
            print(row, flush=True)
            save(report, out)


def by_sections(report: dict[str, Any], sections: Iterable[tuple[str, Callable[[], Any]]], out: Path) -> None:
    """Measure the sections of a report in turn, each by a call; rows that come one by one are saved one by one.

    What fails is noted under ``failures``, and ends nothing; ``seconds`` has what each took, and all so far.
    """
    from benchmarks.measure import attempt

    report |= {"failures": {}, "seconds": {}}
    began = time.perf_counter()
    for name, measure in sections:
        print(f"{time.perf_counter() - began:6.1f} s  {name}", file=sys.stderr, flush=True)
        start = time.perf_counter()

        def kept(name: str = name, measure: Callable[[], Any] = measure) -> Any:
            if not isinstance(answer := measure(), Iterator):
                return answer
            rows = report[name] = []
            for row in answer:
                rows.append(row)
                save(report, out)
            return rows

        answer = attempt(name, kept, report["failures"])
        report[name] = report.get(name) if answer is None else answer
        report["seconds"] |= {name: round(time.perf_counter() - start, 1), "all": round(time.perf_counter() - began, 1)}
        save(report, out)


def ended(report: dict[str, Any]) -> int:
    """Say what failed of a report; its exit status."""
    for name, failure in report["failures"].items():
        print(f"FAILED {name}: {failure}")
    return int(bool(report["failures"]))


def read(name: str) -> dict[str, Any]:
    """A record of that name."""
    return dict(json.loads((RESULTS / name).read_text()))


def write(report: dict[str, Any], out: Path) -> None:
    """The same of a report that is complete. What was there before stays whole until the new one is."""
    last = {key: report[key] for key in SEALED if key in report}
    noted = last.pop("kernels", None)
    text = json.dumps(finite({key: value for key, value in report.items() if key not in SEALED} | last), indent=1)
    text = re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda found: " ".join(found.group().split()), text)
    if noted is not None:  # there may be thousands: a line for each
        lines = ",\n  ".join(json.dumps(note) for note in noted)
        text = f'{text.removesuffix("}").rstrip()},\n "kernels": [\n  {lines}\n ]\n}}'
    out.parent.mkdir(parents=True, exist_ok=True)
    with replaced(out) as file:
        file.write(f"{text}\n".encode())


def finite(value: Any) -> Any:
    """The value with floats that JSON has no form for written out, and others to seven digits."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    return value


# Where and with what.


def machine() -> dict[str, Any]:
    """The GPU in hand by PyTorch, or by Numba where there is no PyTorch; or that there is none."""
    try:
        import torch

        if torch.cuda.is_available():
            found = torch.cuda.get_device_properties(0)
            about = {"device": found.name, "memory_gib": round(found.total_memory / 2**30, 1)}
            return about | {"multiprocessors": found.multi_processor_count, "driver": driver_version()}
    except ImportError:
        pass
    try:
        from numba import cuda

        name = cuda.get_current_device().name
    except Exception:  # no compiler, no driver, no device: each has an error of its own
        return {"device": "none", "driver": None}
    return {"device": name.decode() if isinstance(name, bytes) else str(name), "driver": driver_version()}


def versions() -> dict[str, str | None]:
    """Of the packages that a figure may depend on; None for one that is not installed."""
    found = {name: version_of(name) for name in PACKAGES}
    if "torch" in sys.modules:
        found["cuda of torch"] = sys.modules["torch"].version.cuda
    return found


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def short_name(device: str) -> str:
    """``NVIDIA H200`` becomes ``h200``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower().replace("nvidia", "").replace("geforce", "")).strip("-")


# Digests of sources.


def closure(module: str) -> list[Path]:
    """The file of a module and those of what it imports of its own package, and these of theirs, by path."""
    package, found, left = module.partition(".")[0], {}, [module]
    while left:
        name = left.pop()
        path = _path(name)
        if name in found or name in NOT_MEASURED or path is None:
            continue
        found[name] = path
        left += [each for each in _imports(name, path) if each.partition(".")[0] == package]
    return sorted(found.values())


def digests(paths: Iterable[Path]) -> dict[str, str]:
    """A digest of each file, under its path within the project."""
    return {str(path.relative_to(ROOT)): source_digest(path.read_text()) for path in paths}


def source_digest(text: str) -> str:
    """Of what Python makes of a source: comments, docstrings and layout change nothing."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                node.body = body[1:]
    return _short(_spelled(tree))


def _spelled(node: Any) -> str:
    """A syntax tree in words that are the same in every version of Python: fields without a value are left out."""
    if isinstance(node, ast.JoinedStr):  # versions cut the text between values differently
        parts = [_spelled(part) for part in node.values if not (isinstance(part, ast.Constant) and part.value == "")]
        return f"JoinedStr({', '.join(parts)})"
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
        return f"{type(node).__name__}({', '.join(f'{name}={_spelled(value)}' for name, value in fields)})"
    return f"[{', '.join(map(_spelled, node))}]" if isinstance(node, list) else repr(node)


def code_digest(noted: Iterable[notes.Note]) -> str:
    """Of all sources of refopt that kernels may depend on: while it stands, their PTX does."""
    modules = sorted({note["module"] for note in noted if (note["module"] or "").startswith("refopt.")})
    return _code_digest(tuple(modules))


@lru_cache
def _code_digest(modules: tuple[str, ...]) -> str:
    paths = sorted({path for module in modules for path in closure(module)})
    return _short(json.dumps(digests(paths)))


def data_digest(path: Path) -> str:
    """Of what a report measured: what `benchmarks.records` writes into it changes nothing."""
    report = json.loads(path.read_text())
    return _short(json.dumps({key: value for key, value in report.items() if key not in SEALED}))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _path(module: str) -> Path | None:
    """The file of a module of this project."""
    base = ROOT.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _imports(module: str, path: Path) -> list[str]:
    """Every module that a file imports anywhere, as far as it is one of this project, and the packages around it."""
    text = path.read_text()
    names: list[str] = []
    if path.name == "__init__.py" and "import_module(" in text:  # by their names, which follow from a catalogue
        names += [f"{module}.{each.name}" for each in pkgutil.iter_modules([str(path.parent)])]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            own = module if path.name == "__init__.py" else module.rpartition(".")[0]
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, own)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    names += [name.rpartition(".")[0] for name in (module, *names)]
    return [name for name in names if name and _path(name)]
