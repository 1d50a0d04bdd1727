"""Put the figures of the reports into README.md, between its markers.

    python -m benchmarks.readme
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
REPORT = ROOT / "benchmarks" / "results" / "lars-h200.json"
WORKLOADS = {"resnet50": "ResNet-50", "bert-large": "BERT-large"}
# Label, implementation, how it is enqueued; a floor stands under the form whose bytes it counts.
LINES = (
    ("PyTorch, a loop over tensors", "loop", "eager"),
    ("PyTorch, `_foreach` operations", "foreach_addcmul", "eager"),
    ("the same as a CUDA graph", "foreach_addcmul", "graph"),
    ("**refopt, two launches**", "two_launches", "plan"),
    ("floor", "two_launches", "floor"),
    ("**refopt, norm carried over**", "carried_norm", "plan"),
    ("floor", "carried_norm", "floor"),
)


def table(report: dict[str, Any]) -> str:
    """Milliseconds of a step, a column for each workload and precision."""
    cases = [(workload, config) for workload in WORKLOADS for config in ("fp32", "amp")]
    rows = {
        (row["workload"], row["config"], row["implementation"], row["how"]): row for row in report["steps"]
    }

    def cell(case: tuple[str, str], implementation: str, how: str) -> str:
        if how == "floor":
            return f"{rows[*case, implementation, 'plan']['floor_ms']:.3f}"
        ms = f"{rows[*case, implementation, how]['ms']:.3f}"
        return f"**{ms}**" if how == "plan" else ms

    header = ["", *(f"{WORKLOADS[workload]}, {config}" for workload, config in cases)]
    lines = [[label, *(cell(case, *what) for case in cases)] for label, *what in LINES]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] + ["---:"] * len(cases), *lines))


def with_tables(text: str) -> str:
    """The README with its table as the report has it."""
    made = table(json.loads(REPORT.read_text()))
    return re.sub(
        r"(?s)(<!-- lars -->\n).*?(\n<!-- end -->)", lambda found: found[1] + made + found[2], text
    )


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
