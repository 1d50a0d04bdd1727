"""Tells which records under benchmarks/results are older than what they measured, and why.

    python -m benchmarks.records [FILE ...] [--compile]

Needs no GPU. A record holds while the digests of the sources of its benchmark stand, and of the PTX of each kernel that
it ran, as the pinned compiler makes it here. The PTX is made only if the kernels' own sources have changed; their
digests are written into a record the first time that it is seen here, while those sources are still what it ran. The
exit status is 1 if a record must be made again.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, ROOT, code_digest, data_digest, source_digest, version_of, write
from refopt.gpu import notes

PINNED = {"numba-cuda": "0.30.4"}
COMPILER = ("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-cuda-nvcc")
SHOWN = 3  # reasons that are said of a record


def key_of(note: notes.Note) -> str:
    """What tells a note from others, the digest apart."""
    return json.dumps({name: value for name, value in note.items() if name != "ptx"}, sort_keys=True)


def rebuildable(note: notes.Note) -> bool:
    """Kernels of tests and benchmarks stand in sources that are digested."""
    return (note["module"] or "").startswith("refopt.")


def ptx_digest(note: notes.Note) -> str:
    """Of the kernel that the code makes now; for one that it does not make any more, or not of these types, why."""
    from numba.core.errors import NumbaError  # a machine may have none

    try:
        kernel, signature = notes.rebuilt(note)
    except LookupError as error:
        return f"none: {error}"
    try:
        return notes.digest(kernel.ptx(signature))
    except (TypeError, NumbaError) as error:  # the kernel now takes other arguments
        why = " ".join(str(error).split())[:200]
        return f"none: it no longer compiles for these arguments: {type(error).__name__}: {why}"


def ptx_digests(noted: Sequence[notes.Note], processes: int | None = None) -> dict[str, str]:
    """The same of many, each once, by their keys."""
    each = {key_of(note): note for note in noted}
    with ProcessPoolExecutor(processes or os.cpu_count(), get_context("spawn")) as pool:
        return dict(zip(each, pool.map(ptx_digest, each.values(), chunksize=4), strict=True))


def compiler() -> dict[str, str | None]:
    return {name: version_of(name) for name in COMPILER}


def changed_sources(record: dict[str, Any]) -> list[str]:
    """What is wrong with the sources of a benchmark."""
    if not record.get("sources"):
        return ["it has no digest of the benchmark's source"]
    changes = []
    for name, digest in record["sources"].items():
        path = ROOT / name
        if not path.is_file():
            changes.append(f"{name} is gone")
        elif source_digest(path.read_text()) != digest:
            changes.append(f"{name} has changed")
    for name, digest in record.get("reports", {}).items():
        if not (path := RESULTS / name).is_file() or data_digest(path) != digest:
            changes.append(f"it was made of another {name}")
    return changes


def changed_kernels(record: dict[str, Any], digests: dict[str, str]) -> list[str]:
    """What is wrong with the kernels of a record, given the digests of their PTX as it is now."""
    changes = []
    for note in filter(rebuildable, record["kernels"]):
        now = digests[key_of(note)]
        if now != note["ptx"]:
            what = f"kernel {note['name']} ({', '.join(note['signature'])}) of {note['module']}"
            changes.append(f"{what}: {now}" if now.startswith("none: ") else f"{what} has other PTX")
    return changes


def needs_ptx(record: dict[str, Any], always: bool = False) -> bool:
    """Whether the PTX of its kernels has to be made: it has none yet, or their sources have changed."""
    noted = [note for note in record.get("kernels", []) if rebuildable(note)]
    return bool(noted) and (always or not sealed(record) or record.get("code") != code_digest(record["kernels"]))


def sealed(record: dict[str, Any]) -> bool:
    """Whether the digest of each kernel stands in the record."""
    return all("ptx" in note for note in record["kernels"] if rebuildable(note))


def reasons(record: dict[str, Any], digests: dict[str, str]) -> list[str]:
    """Why a record must be made again; none if it holds. A record that can be sealed is.

    Args:
        record: what a file of results has.
        digests: of the PTX of its kernels as it is now, where `needs_ptx` says so.
    """
    changes = changed_sources(record)
    if "kernels" not in record:
        return [*changes, "it has no digest of the kernels that it ran"]
    if not any(map(rebuildable, record["kernels"])):
        return changes
    same_code = record.get("code") == code_digest(record["kernels"])
    if not sealed(record):
        if not same_code:
            reason = "the kernels' sources have changed since, and the digests of their PTX had not been written"
            return [*changes, f"{reason} into it"]
        for note in filter(rebuildable, record["kernels"]):
            note["ptx"] = digests[key_of(note)]
        record["compiler"] = compiler()
        return changes
    if record["compiler"] != compiler() and not same_code:
        return [*changes, f"made for another compiler: {_spelled(record['compiler'])}, here {_spelled(compiler())}"]
    return changes + (changed_kernels(record, digests) if all(map(digests.get, _keys(record))) else [])


def _keys(record: dict[str, Any]) -> list[str]:
    return [key_of(note) for note in record["kernels"] if rebuildable(note)]


def _spelled(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def checked(paths: Iterable[Path], always: bool = False) -> dict[str, list[str]]:
    """The reasons of each record; records that were sealed are written."""
    records = {path: json.loads(path.read_text()) if path.suffix == ".json" else {} for path in paths}
    wanted = [
        note for record in records.values() if needs_ptx(record, always)
        for note in record["kernels"] if rebuildable(note)
    ]
    digests = {}
    if wanted:
        for name, version in PINNED.items():
            if version_of(name) != version:
                got = version_of(name) or "none, which the extra cuda13 would install"
                raise SystemExit(f"records: expected {name} {version}, whose PTX is compared, got {got}")
        print(f"PTX of {len({key_of(note) for note in wanted})} kernels", file=sys.stderr, flush=True)
        digests = ptx_digests(wanted)
    by_file = {}
    for path, record in records.items():
        before = json.dumps(record)
        by_file[path.name] = reasons(record, digests)
        if json.dumps(record) != before:
            write(record, path)
    return by_file


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: all of benchmarks/results")
    parser.add_argument("--compile", action="store_true", help="make the PTX even where no source has changed")
    options = parser.parse_args()
    by_file = checked(options.files or sorted(RESULTS.iterdir()), options.compile)
    for name, own in by_file.items():
        print(f"{name}: {'holds' if not own else 'must be made again'}")
        for reason in own[:SHOWN]:
            print(f"  {reason}")
        if len(own) > SHOWN:
            print(f"  and {len(own) - SHOWN} more")
    return int(any(by_file.values()))


if __name__ == "__main__":
    sys.exit(main())
