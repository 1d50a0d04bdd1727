"""Write the frozen bits that are not there yet: inputs and outputs in hexadecimal.

``ROUTINE.json`` has each routine's default choices. ``ROUTINE-orders.json`` has every choice, every optional state,
remainders, stochastic rounding and the gate, with numbers that are no powers of two and differ between tensors, so
that the order of every operation shows. ``ROUTINE-options.json`` has the choices that stand alone, one by one.

A file is written once for each version of a routine: a change of these bits is a change of the specification
(docs/numerics.md).

    python tests/frozen/generate.py
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from refopt.catalog import ROUTINES, Hyper, Routine
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.exact.examples import varied
from refopt.oracle.exact.laws import reference

FOLDER = Path(__file__).parent
DTYPES = {"fp32": ("float32", "float32", "float32"),
          "fp16, fp32 master": ("float16", "float16", "float32", "float32"),
          "bf16": ("bfloat16", "bfloat16", "float32"), "fp64": ("float64", "float64", "float64")}
SIZES = [2, 1, 3, 2, 5, 1, 2, 4, 3, 2, 40, 0]  # many small ones, each with numbers of its own
WITH_REMAINDER = ("bfloat16", "bfloat16", "float32", "uint16")
GATE = "grad_factor", "found_inf"
ALONE = "decay", "maximize", "lr_at"


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


def entries(file: str) -> dict[str, dict]:
    """Those of a file, by name; none if it has not been written yet."""
    path = FOLDER / f"{file}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def load(routine: Routine, entry: dict) -> tuple[Case, Outcome]:
    """The case and the outcome of an entry."""
    given, left = (
        {slot: arrays(values, dtype_in(slot, routine, entry["dtypes"])) for slot, values in entry[side].items()}
        for side in ("in", "out"))
    steps = [{name: arrays([value], "float32")[0] if name in GATE else value for name, value in step.items()}
             for step in entry["steps"]]
    return Case(routine, given, steps, entry["choices"]), left


def entry(case: Case, dtypes: tuple[str, ...]) -> dict:
    """A case and its outcome, as JSON has them."""
    left = {slot: values for slot, values in reference(case).items() if case.slots[slot]}
    assert all(np.isfinite(x.astype(np.float64)).all() for values in left.values() for x in values)
    return {"dtypes": dtypes,
            "steps": [{n: words([x])[0] if n in GATE else x for n, x in step.items()} for step in case.steps],
            "choices": case.choices, "in": {slot: words(values) for slot, values in case.slots.items() if values},
            "out": {slot: words(values) for slot, values in left.items()}}


def optional_states(routine: Routine) -> tuple[str, ...]:
    return tuple(slot.name for slot in routine.slots if slot.optional and slot.name in routine.states)


def defaults(routine: Routine) -> dict[str, dict]:
    """Default choices, in each of `DTYPES`."""
    entries = {}
    for name, dtypes in DTYPES.items():
        one = step_of(routine)
        sizes = [2, 0, 1, 300 if name == "fp32" else 7]
        steps = [one, one | varied(routine, len(sizes))]
        given = optional_states(routine) if name == "fp64" else ()
        entries[name] = entry(make(routine, sizes, dtypes, steps=steps, optional=given), dtypes)
    return entries


def orders(routine: Routine) -> dict[str, dict]:
    """Every combination of choices and optional states, and what goes on around a step."""
    entries = {}
    chance = np.random.default_rng([ord(letter) for letter in routine.name])
    choices = {name: values for name, values in routine.choices.items() if name not in ("rounding", *ALONE)}
    states = optional_states(routine)
    for values in itertools.product(*choices.values()):
        for given in itertools.product((False, True), repeat=len(states)):
            chosen = dict(zip(choices, values, strict=True))
            optional = tuple(name for name, there in zip(states, given, strict=True) if there)
            name = ", ".join([*(f"{key}={value}" for key, value in chosen.items()), *(f"with {s}" for s in optional)])
            with_master = not optional and (not entries or "norm_of" in chosen)
            for storage in ("fp32", "fp16, fp32 master") if with_master else ("fp32",):
                case = drawn(routine, DTYPES[storage], chance, optional=optional, **chosen)
                entries[f"{name or 'plain'}, {storage}"] = entry(case, DTYPES[storage])
    gated = drawn(routine, DTYPES["fp32"], chance)
    for k, step in enumerate(gated.steps):
        step["grad_factor"] = np.full(1, round(chance.uniform(0.1, 0.9), 6), np.float32)
        step["found_inf"] = np.full(1, k == 1, np.float32)
    entries["gate, fp32"] = entry(gated, DTYPES["fp32"])
    entries["remainder"] = entry(drawn(routine, WITH_REMAINDER, chance), WITH_REMAINDER)
    if "rounding" in routine.choices:
        bf16 = ("bfloat16",) * 3
        entries["stochastic"] = entry(drawn(routine, bf16, chance, optional=states, rounding="stochastic"), bf16)
    return entries


def alone(routine: Routine) -> dict[str, dict]:
    """Each choice that stands alone, with every number."""
    chance = np.random.default_rng([len(routine.hypers), *(ord(letter) for letter in routine.name)])
    fp32, given = DTYPES["fp32"], optional_states(routine)
    return {f"{name}={value}, fp32": entry(drawn(routine, fp32, chance, optional=given, **{name: value}), fp32)
            for name in ALONE for value in routine.choices.get(name, ())}


def drawn(routine: Routine, dtypes: tuple[str, ...], chance: np.random.Generator, **options: Any) -> Case:
    """Three steps of tensors of `SIZES`, with numbers drawn anew for each step and, where there can be, each tensor."""

    def one(hyper: Hyper) -> float:
        if hyper.whole:
            return int(chance.integers(1, 1000))
        least = 0.4 if hyper.below > 1 else 0.9  # an average's length should stay one of several steps
        return round(float(step_of(routine)[hyper.name] * chance.uniform(least, 1.1)), 6)

    def value(hyper: Hyper) -> Any:
        return [one(hyper) for _ in SIZES] if hyper.per_tensor else one(hyper)

    steps = [{hyper.name: value(hyper) for hyper in routine.hypers} for _ in range(3)]
    case = make(routine, SIZES, dtypes, seed=int(chance.integers(1000)), steps=steps, **options)
    for slot in routine.states:
        for state in (case.slots[slot] or ())[::3]:
            state *= state.dtype.type(2**-20)  # so that the gradient's last bits show in a third of the tensors
    return case


MADE = {"": defaults, "-orders": orders, "-options": alone}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for routine in ROUTINES.values():
        for kind, made in MADE.items():
            file = FOLDER / f"{routine.name}{kind}.json"
            if not file.exists() and (kind != "-options" or {*ALONE} & {*routine.choices}):
                file.write_text(json.dumps(made(routine), indent=1) + "\n")


if __name__ == "__main__":
    main()
