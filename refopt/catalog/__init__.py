"""One row per routine, collected from `refopt.cpu`: its arguments, launches and bytes.

The checks, the plans, the command line, the laws and the tables of the documentation are built from these rows. Simple
routines come first: elementwise ones before others, then by the number of their slots.
`refopt.catalog.workloads` has the tensors of real models, `refopt.catalog.data` seeded data for a routine on them.

    >>> from refopt.catalog import ROUTINES, Spec
    >>> row = ROUTINES["adamw"]
    >>> row.slot_names[:4], row.forms["merged"].launches
    (('params', 'grads', 'moment1', 'moment2'), 1)
    >>> list(row.forms)
    ['separate', 'merged']
"""

from refopt import cpu
from refopt.checks.rows import Form, Hyper, Limit, Routine, Slot, Spec
from refopt.cpu.muon import MUON
from refopt.cpu.normuon import NORMUON

__all__ = ["KNOWN", "ROUTINES", "Form", "Hyper", "Limit", "Routine", "Slot", "Spec"]


def _order(row: Routine) -> tuple:
    return not row.elementwise, sum(not slot.optional for slot in row.slots), row.name


ROUTINES: dict[str, Routine] = {row.name: row for row in sorted(cpu.ROWS.values(), key=_order)}
KNOWN = ROUTINES | {row.name: row for row in (MUON, NORMUON)}  # including those for matrices only


def __getattr__(name: str) -> Routine:
    """A row by its name in capitals, such as ``catalog.ADAM``."""
    if name.isupper() and name.lower() in ROUTINES:
        return ROUTINES[name.lower()]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
