"""How far right code comes from the truth, over the oracle's bound: each rule in other orders, and by chance.

    PYTHONPATH=tests python -m benchmarks.rewritings [--examples 150] [--out FILE]

Every rule is rewritten at random, with FMA, and rounded to nearest; then each operation is rounded to either neighbour
(Monte Carlo arithmetic). `tests/oracle/rewritings.py` says how.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from oracle.test_rewritings import largest_ratios

from benchmarks.record import RESULTS, begin, save
from refopt.catalog import ROUTINES


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=150, metavar="N")
    parser.add_argument("--out", type=Path, default=RESULTS / "rewritings.json")
    options = parser.parse_args()
    report = begin("benchmarks.rewritings") | {"what": "rewritings", "examples": options.examples, "rows": []}
    for name in ROUTINES:
        nearest, either = (largest_ratios(name, np.float32, options.examples, k)[0] for k in (0, 1))
        row = {"routine": name, "nearest": max(nearest.values()), "either": max(either.values())}
        report["rows"].append(row)
        save(report, options.out)
        print(f"{name}: {row['nearest']:.2f} in other orders, {row['either']:.2f} by chance", flush=True)
    return int(any(row["either"] > 1 for row in report["rows"]))


if __name__ == "__main__":
    sys.exit(main())
