"""Tests that two runs have skipped: ``python tests/skipped.py build/test.xml build/test-peers.xml``.

Each file is a report of pytest's, by ``--junitxml``. What the first run has skipped, the second must have run: it lacks
no peer. The exit status is 1 if it has not, and the tests are named.
"""

import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path


def reported(report: Path) -> Iterator[tuple[str, str | None]]:
    """Each test of a report, or module that was skipped as one, and why it was skipped, if it was."""
    for case in ET.parse(report).iter("testcase"):
        # Of a module that is skipped as one, the name is its own and the class is empty.
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        skipped = case.find("skipped")
        yield name, None if skipped is None else (skipped.text or "").strip()


def skipped_by_both(first: Path, second: Path) -> dict[str, str]:
    """The tests that the first run has skipped and the second has not run, with the first's reasons."""
    ran = {name for name, reason in reported(second) if reason is None}
    # A module was run if a test of its was.
    return {
        name: reason
        for name, reason in reported(first)
        if reason is not None and name not in ran and not any(other.startswith(name + ".") for other in ran)}


def main(first: str, second: str) -> int:
    if not Path(first).exists():
        print(f"{first} is not there: what make test has skipped is not known")
        return 0
    left = skipped_by_both(Path(first), Path(second))
    for name, reason in left.items():
        print(f"skipped by both runs: {name}: {reason}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
