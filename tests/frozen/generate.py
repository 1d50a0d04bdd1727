"""Write lars_momentum.json: inputs and outputs of LARS in hexadecimal.

Run once for each version of the routine: a change of these bits is a change of the specification
(docs/numerics.md).

    python tests/frozen/generate.py
"""

import json
from pathlib import Path

import numpy as np

from refopt.conformance.cases import Case, dtype_of
from refopt.conformance.laws import STEP, make, reference

FILE = Path(__file__).parent / "lars_momentum.json"
CASES = {
    "fp32": ("float32", "float32", "float32"),
    "fp16, fp32 master": ("float16", "float16", "float32", "float32"),
    "bf16": ("bfloat16", "bfloat16", "float32"),
    "fp64": ("float64", "float64", "float64"),
}
SLOTS = ("params", "grads", "velocities", "masters")


def words(arrays: list) -> list:
    """Each array as one string of its elements' bits."""
    return [x if x is None else " ".join(f"{b:0{2 * x.itemsize}x}" for b in x.view(f"u{x.itemsize}")) for x in arrays]


def arrays(words: list, dtype: str) -> list:
    """What `words` was made from."""
    kind = dtype_of(dtype)
    return [np.array([int(b, 16) for b in text.split()], f"u{kind.itemsize}").view(kind) for text in words]


def load(entry: dict) -> tuple[Case, dict]:
    """The case and the outcome of an entry."""
    given = {slot: arrays(entry["in"][slot], dtype) for slot, dtype in zip(SLOTS, entry["dtypes"], strict=False)}
    left = {slot: arrays(values, entry["dtypes"][SLOTS.index(slot)]) for slot, values in entry["out"].items()}
    masters = given.get("masters")
    return Case(given["params"], given["grads"], given["velocities"], masters, entry["steps"], entry["choices"]), left


def main() -> None:
    entries = {}
    for name, dtypes in CASES.items():
        steps = [STEP, STEP | dict(lr=[0.25, 0.5, 0.125, 1.0], lars_weight_decay=[0.0, 0.1, 0.2, 0.3])]
        case = make([2, 0, 1, 300 if name == "fp32" else 7], dtypes, steps=steps)
        given = dict(zip(SLOTS, case[:4], strict=True))
        left = {slot: values for slot, values in reference(case).items() if values[0] is not None}
        entries[name] = {
            "dtypes": dtypes,
            "steps": steps,
            "choices": case.choices,
            "in": {slot: words(values) for slot, values in given.items() if values is not None},
            "out": {slot: words(values) for slot, values in left.items()},
        }
    FILE.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
