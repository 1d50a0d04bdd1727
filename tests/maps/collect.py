"""Every test of the suite with its markers: pytest collects them in a process of its own, and runs none.

As a plugin of that process this module writes one line of JSON for each item to the file that ``REFOPT_MAPS`` names.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
OUTPUT = "REFOPT_MAPS"
MARKERS = "evidence", "clause"
USED = rf"mark\.({'|'.join(MARKERS)})\("


class Item(NamedTuple):
    """A test as it is collected: its id, its function's, and its markers, each as arguments and keywords."""

    id: str
    function: str
    module: str  # the first sentence of the module's docstring
    says: str  # that of the function's
    routine: str  # what its id begins with
    markers: dict[str, list[tuple[list[str], dict[str, str]]]]

    def of(self, marker: str) -> list[tuple[list[str], dict[str, str]]]:
        return self.markers.get(marker, [])


def suite() -> list[Item]:
    """All items of the folders in which a marker is used, those that are left out of a run, too."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "items"
        path = os.pathsep.join([str(ROOT), str(TESTS), *filter(None, sys.path)])
        environment = os.environ | {"PYTHONPATH": path, OUTPUT: str(output), "PYTEST_ADDOPTS": ""}
        plugins = ["-p", "maps.collect", "-p", "no:cacheprovider", "--assert=plain"]  # no assertion is run
        marked = {path.parent for path in TESTS.glob("*/*.py") if re.search(USED, path.read_text())}
        command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", *plugins, *sorted(map(str, marked))]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"pytest could not collect the tests:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return [Item(**json.loads(line)) for line in output.read_text().splitlines()]


def pytest_collection_finish(session: Any) -> None:
    """Write what was collected, if this is the process that was asked to."""
    if OUTPUT in os.environ:
        with open(os.environ[OUTPUT], "w") as file:
            file.writelines(json.dumps(described(item)) + "\n" for item in session.items)


def described(item: Any) -> dict[str, Any]:
    """What `Item` says of a test."""
    markers = {name: [[list(m.args), dict(m.kwargs)] for m in item.iter_markers(name)] for name in MARKERS}
    return {"id": item.nodeid,
            "function": item.nodeid.partition("[")[0],
            "module": sentence(getattr(getattr(item, "module", None), "__doc__", None) or ""),
            "says": (getattr(item.obj, "__doc__", None) or "").partition("\n")[0],
            "routine": re.split("[-,\\]]", item.nodeid.partition("[")[2], maxsplit=1)[0],
            "markers": {name: marks for name, marks in markers.items() if marks}}


def sentence(text: str) -> str:
    """The first sentence of a text, as one line."""
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")


def head(page: Path) -> str:
    """What stands on a page before its first heading or table, which is written there by hand."""
    return re.split(r"(?m)^(?:## |\| )", page.read_text(), maxsplit=1)[0].removesuffix("\n")
