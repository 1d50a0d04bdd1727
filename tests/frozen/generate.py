"""Write ROUTINE.json for every routine that has none: inputs and outputs in hexadecimal.

A file is written once for each version of a routine: a change of these bits is a change of the specification
(docs/numerics.md).

    python tests/frozen/generate.py
"""

import json
from pathlib import Path

import numpy as np

from refopt.catalog import ROUTINES, Routine
from refopt.conformance.build import make, step_of
from refopt.conformance.cases import Case, Outcome
from refopt.conformance.examples import varied
from refopt.conformance.laws import reference
from refopt.dtypes import numpy_dtype

FOLDER = Path(__file__).parent
DTYPES = {
    "fp32": ("float32", "float32", "float32"),
    "fp16, fp32 master": ("float16", "float16", "float32", "float32"),
    "bf16": ("bfloat16", "bfloat16", "float32"),
    "fp64": ("float64", "float64", "float64"),
}


def dtype_in(slot: str, routine: Routine, dtypes: list[str]) -> str:
    """The dtype of a slot in an entry, whose ``dtypes`` are those of p, g, the states and the master."""
    if slot in routine.scalars:
        return "float64" if dtypes[0] == "float64" else "float32"
    return dtypes[{"params": 0, "grads": 1, "master_params": 3}.get(slot, 2)]


def words(arrays: list) -> list[str]:
    """Each array as one string of its elements' bits."""
    return [" ".join(f"{b:0{2 * x.itemsize}x}" for b in x.view(f"u{x.itemsize}")) for x in arrays]


def arrays(words: list[str], dtype: str) -> list[np.ndarray]:
    """What `words` was made from."""
    kind = numpy_dtype(dtype)
    return [np.array([int(b, 16) for b in text.split()], f"u{kind.itemsize}").view(kind) for text in words]


def load(routine: Routine, entry: dict) -> tuple[Case, Outcome]:
    """The case and the outcome of an entry."""
    given, left = (
        {slot: arrays(values, dtype_in(slot, routine, entry["dtypes"])) for slot, values in entry[side].items()}
        for side in ("in", "out")
    )
    return Case(routine, given, entry["steps"], entry["choices"]), left


def entry(case: Case, dtypes: tuple[str, ...]) -> dict:
    """A case and its outcome, as JSON has them."""
    left = {slot: values for slot, values in reference(case).items() if case.slots[slot]}
    return {
        "dtypes": dtypes,
        "steps": case.steps,
        "choices": case.choices,
        "in": {slot: words(values) for slot, values in case.slots.items() if values},
        "out": {slot: words(values) for slot, values in left.items()},
    }


def main() -> None:
    for routine in ROUTINES.values():
        file = FOLDER / f"{routine.name}.json"
        if file.exists():
            continue
        entries = {}
        optional = tuple(name for name in routine.states if next(s for s in routine.slots if s.name == name).optional)
        for name, dtypes in DTYPES.items():
            one = step_of(routine)
            sizes = [2, 0, 1, 300 if name == "fp32" else 7]
            steps = [one, one | varied(routine, len(sizes))]
            given = optional if name == "fp64" else ()
            entries[name] = entry(make(routine, sizes, dtypes, steps=steps, optional=given), dtypes)
        file.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
