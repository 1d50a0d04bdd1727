"""The tables of docs/executor-compared.md, of the records of `benchmarks.detectors` and `benchmarks.simulator`."""

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.detectors import CRASHES, HANGS, LACKS, REPORTED, RIGHT, TOOLS, WRONG
from benchmarks.record import RESULTS, read
from benchmarks.sections import figures, table, with_section

COLUMNS = {"executor": "executor, watched", "simulator": "Numba's simulator", "alone": "GPU alone"}
TOGETHER = "compute-sanitizer"
Row = dict[str, Any]  # of a record; "ways" by name


def rows() -> list[Row]:
    """The rows of the record without a GPU, with the ways of the one with a GPU, where there is one."""
    listed = read("detectors.json")["rows"]
    ways = {row["name"]: {one["how"]: one for one in row["ways"]} for row in listed}
    for path in sorted(RESULTS.glob("detectors-*.json")):
        for row in read(path.name)["rows"]:
            ways[row["name"]] |= {one["how"]: one for one in row["ways"]}
    return [row | {"ways": ways[row["name"]]} for row in listed]


def measured(listed: Iterable[Row]) -> dict[str, str]:
    """The columns that there are figures of."""
    ways = {name for row in listed for name in row["ways"]}
    return {key: title for key, title in (COLUMNS | {"memcheck": TOGETHER}).items() if key in ways}


def cell(row: Row, key: str) -> str:
    """What is said of a case in one way; of compute-sanitizer, by all its tools."""
    if key != "memcheck":
        return said(row["ways"][key], row) + (asked(row) if key == "executor" else "")
    reports = [f"{tool}: {said(row['ways'][tool], row)}" for tool in TOOLS if is_reported(row["ways"][tool])]
    return "; ".join(reports) or said(row["ways"]["memcheck"], row)


def is_reported(way: Row) -> bool:
    return bool(way["verdict"] == REPORTED)


def said(way: Row, row: Row) -> str:
    """A report by its name, with what it leaves out; else what happened."""
    verdict, says = str(way["verdict"]), str(way.get("says", ""))
    if is_reported(way):
        without = [word for word in ("line", "threads") if not way[word]]
        text = f"{says}{f' (without {chr(32).join(without)})' if without else ''}"
        return f"**{text}**" if not row["right"] else f"refused: {text}"
    if row["right"] and verdict == RIGHT:
        return "right"
    return SHORT.get(verdict, verdict) + (f", {says}" if says else "")


SHORT = {RIGHT: "silent", WRONG: "silent, wrong", HANGS: "hangs", CRASHES: "crashes", LACKS: "cannot run"}


def asked(row: Row) -> str:
    """What the executor reports if it is asked to."""
    way = row["ways"].get("executor, on request")
    return f"; with `{row['options']}` {said(way, row)}" if way else ""


def cases(right: bool) -> Callable[[list[Row]], str]:
    """A table of the defects, or of the right kernels."""

    def render(listed: list[Row]) -> str:
        columns = measured(listed)
        lines = [["correct kernel" if right else "defect", *columns.values()], ["---"] * (1 + len(columns))]
        lines += [[row["what"], *(cell(row, key) for key in columns)] for row in listed if row["right"] == right]
        return table(lines)

    return render


def summary(listed: list[Row]) -> str:
    """How often each way said what."""
    heads = ("reported", "silent, wrong result", "silent, right result", "hangs", "crashes", "cannot run")
    defects = [row for row in listed if not row["right"]]
    right = [row for row in listed if row["right"]]
    ways = [*COLUMNS, *TOOLS]
    titles = COLUMNS | {tool: f"compute-sanitizer, {tool}" for tool in TOOLS}
    lines = []
    for key in (key for key in ways if key in listed[0]["ways"]):
        verdicts = [row["ways"][key]["verdict"] for row in defects]
        known = (REPORTED, WRONG, RIGHT, HANGS)
        counts = [verdicts.count(one) for one in known]
        others = [len(verdicts) - sum(counts) - verdicts.count(LACKS), verdicts.count(LACKS)]
        passed = sum(row["ways"][key]["verdict"] == RIGHT for row in right)
        seconds = statistics.median(row["ways"][key]["seconds"] for row in listed)
        lines.append([titles[key], *map(str, counts + others), f"{passed} of {len(right)}", f"{seconds:.1f}"])
    if "memcheck" in measured(listed):
        together = sum(any(is_reported(row["ways"][tool]) for tool in TOOLS) for row in defects)
        passed = sum(all(row["ways"][tool]["verdict"] == RIGHT for tool in TOOLS) for row in right)
        lines.append(["compute-sanitizer, any of the four", str(together), *[""] * 5, f"{passed} of {len(right)}", ""])
    return figures(["", *heads, "correct kernels passed", "seconds"], lines)


def times(listed: list[Row]) -> str:
    """Seconds of a launch of kernels without defects."""
    keys = ("unwatched", "watched", "simulator")
    lines = ([row["what"], *(f"{row[key]['median_s']:.3f}" for key in keys)] for row in read("simulator.json")["rows"])
    return figures(["kernel", "executor", "executor, watched", "Numba's simulator"], lines)


def measured_with(listed: list[Row]) -> str:
    """Versions, and on a GPU the device and the sanitizer."""
    lines = []
    for path in (RESULTS / "detectors.json", *sorted(RESULTS.glob("detectors-*.json"))):
        record = read(path.name)
        packages = ("python", "numpy", "numba", "numba-cuda")
        versions = ", ".join(f"{name} {record['versions'][name]}" for name in packages)
        where = "without a GPU"
        if record["on"] == "gpu":
            sanitizer = f"compute-sanitizer {''.join(record['sanitizer'])}"
            where = f"on {record['device']}, driver {record['driver']}, {sanitizer}"
        lines.append(f"- `{path.name}`, {record['date'][:10]}: {where}; {versions}")
    return "\n".join(lines)


SECTIONS = {
    "measured": measured_with, "summary": summary, "defects": cases(False), "right kernels": cases(True),
    "times": times,
}


def with_detectors(page: str) -> str:
    """The page with its tables as the records have them."""
    listed = rows()
    for name, section in SECTIONS.items():
        page = with_section(page, name, section(listed))
    return page
