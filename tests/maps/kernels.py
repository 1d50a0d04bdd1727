"""kernels/: of each routine the fp32 kernels, each with all that it calls, as `refopt show` prints them."""

from pathlib import Path
from typing import Any

from maps.collect import ROOT

from refopt.catalog import KNOWN, Routine
from refopt.gpu.show import source

FOLDER = ROOT / "kernels"


def names(row: Routine) -> dict[str, tuple[str, dict[str, Any]]]:
    """The files of a routine, with the form and the choices that are not the usual ones.

    LARS has forms of its own; the others have one kernel, launched for each tensor or for all of them.
    """
    if row.matrix_arguments:
        others = {"float32": {"compute": "float32"}, "hopper": {"hopper": True}}
        return {row.name: (row.merged_form, {}), **{
            f"{row.name}_{name}": (row.merged_form, choices) for name, choices in others.items()}}
    if "cooperative" not in row.forms:
        return {row.name: (row.merged_form, {})}
    return {row.name if form == row.merged_form else f"{row.name}_{form}": (form, {}) for form in row.forms}


def files() -> dict[Path, str]:
    """The files."""
    return {
        FOLDER / f"{name}.py": source(row.name, "fp32", form, **choices)
        for row in KNOWN.values() for name, (form, choices) in names(row).items()
    }


def write() -> None:
    """Write the files, and remove those that belong to no routine."""
    FOLDER.mkdir(exist_ok=True)
    made = files()
    for path in FOLDER.glob("*.py"):
        if path not in made:
            path.unlink()
    for path, text in made.items():
        path.write_text(text)
