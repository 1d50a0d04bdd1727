"""Which of all changes are tried: a sample spread over the parts of the package, by a seed."""

import itertools
import json
import random
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from math import sqrt
from pathlib import Path

from mutation.edits import Edit, compiles, edits

# The parts that kill rates are reported for; a file belongs to the first that its path begins with.
PARTS = {"cpu": ("refopt/cpu/",), "gpu rules": ("refopt/gpu/rules/",),
         "tiles, tables": ("refopt/gpu/tiles", "refopt/gpu/tables"), "passes": ("refopt/program/passes/",),
         "ops": ("refopt/program/ops/",), "placement": ("refopt/program/placement/",), "program": ("refopt/program/",),
         "comm": ("refopt/comm/",), "gpu": ("refopt/gpu/",), "state": ("refopt/state/",), "simt": ("refopt/simt/",),
         "checks": ("refopt/checks/",), "oracle": ("refopt/oracle/",), "verify": ("refopt/cli/verify/",),
         "cli": ("refopt/cli/",), "torch": ("refopt/torch/",), "catalog": ("refopt/catalog/",), "top": ("refopt/",)}

LEFT_OUT = {
    # what tests draw: a change makes it another draw,
    "refopt/oracle/exact/strategies.py", "refopt/oracle/exact/examples.py", "refopt/oracle/exact/lars.py",
    "refopt/oracle/exact/build.py", "refopt/catalog/data.py",
    # and what calls CUDA itself, which runs on a GPU alone, where the laws are its tests.
    "refopt/gpu/driver.py"}

WRONG = "refopt/oracle/wrong/"  # rules that are wrong on purpose: a change leaves them wrong


def part_of(file: str) -> str:
    """The part of the package that a file belongs to."""
    return next(part for part, prefixes in PARTS.items() if file.startswith(prefixes))


def all_edits(root: Path) -> list[Edit]:
    """Every change that the package offers."""
    files = sorted(str(path.relative_to(root)) for path in (root / "refopt").rglob("*.py"))
    right = [file for file in files if file not in LEFT_OUT and not file.startswith(WRONG)]
    return [edit for file in right for edit in edits(file, (root / file).read_text())]


def sample(root: Path, found: Iterable[Edit], seed: int, count: int, parts: Iterable[str] = ()) -> list[Edit]:
    """Some changes, drawn from each part in proportion to the root of how many it offers: small parts have some, too.

    Args:
        root: the checkout.
        found: all changes.
        seed: of the draw.
        count: how many, about: shares are rounded up.
        parts: the parts to draw from; all if empty.
    """
    by_part: dict[str, list[Edit]] = defaultdict(list)
    for edit in found:
        if not parts or part_of(edit.file) in parts:
            by_part[part_of(edit.file)].append(edit)
    roots = {part: sqrt(len(offered)) for part, offered in by_part.items()}
    draw = random.Random(seed)
    drawn = []
    for part, offered in sorted(by_part.items()):
        share = min(len(offered), int(count * roots[part] / sum(roots.values())) + 1)
        shuffled = draw.sample(offered, len(offered))
        usable = (edit for edit in shuffled if compiles(edit, (root / edit.file).read_text()))
        drawn += itertools.islice(usable, share)
    return drawn


def changed(root: Path, found: Iterable[Edit], revision: str) -> list[Edit]:
    """The changes that stand in lines which the checkout has otherwise than a commit.

    Raises:
        subprocess.CalledProcessError: git knows no such commit, and has said so.
    """
    command = ["git", "diff", "--unified=0", "--no-color", "--no-ext-diff", revision, "--", "refopt"]
    text = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines: dict[str, set[int]] = defaultdict(set)
    for file, hunks in re.findall(r"(?m)^\+\+\+ b/(\S+)\n((?:(?!^diff ).*\n?)*)", text):
        for first, count in re.findall(r"(?m)^@@ \S+ \+(\d+)(?:,(\d+))? @@", hunks):
            lines[file].update(range(int(first), int(first) + int(count or 1)))
    return [edit for edit in found if not lines[edit.file].isdisjoint(range(edit.lines[0], edit.lines[1] + 1))]


def again(found: Iterable[Edit], report: Path, parts: Iterable[str] = ()) -> list[Edit]:
    """The changes of some parts, or all, that a report says were not killed, as far as the package still offers them.

    Of changes alike in one function, it is that whose line is the nearest to where it was.
    """
    names, offered = ("part", "verdict", "line", "tests", "equivalent because"), defaultdict(list)
    for edit in found:
        offered[key_of(edit.key())].append(edit)
    chosen = []
    for row in json.loads(report.read_text())["not killed"]:
        those = offered[key_of({name: value for name, value in row.items() if name not in names})]
        if those and (not parts or row["part"] in parts):
            chosen.append(min(those, key=lambda edit: abs(edit.lines[0] - row["line"])))
    return list(dict.fromkeys(chosen))


def equivalents(path: Path) -> dict[str, str]:
    """The changes known to change nothing that anyone could see: their keys, and the reason."""
    entries = json.loads(path.read_text())
    return {key_of({k: v for k, v in entry.items() if k != "reason"}): entry["reason"] for entry in entries}


def key_of(key: dict[str, str]) -> str:
    """A change's key as one text."""
    return json.dumps(key, sort_keys=True)
