"""One row per routine: what it takes, in how many launches and over how many bytes it is done.

The checks, the plans, the command line, the laws and the tables of the documentation follow these rows.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from refopt.dtypes import SIZES


class Slot(NamedTuple):
    """One list of tensors of a routine."""

    name: str
    written: bool
    optional: bool = False


class Hyper(NamedTuple):
    """One number of a routine. ``default`` None means that the caller must give it."""

    name: str
    default: float | None
    positive: bool = False
    per_tensor: bool = False


class Spec(NamedTuple):
    """What a tensor is to launch and byte counts: its elements and the dtype of each slot, None if absent."""

    size: int
    dtypes: tuple[str | None, ...]


class Form(NamedTuple):
    """One way to run a routine on the device: launches for one dtype signature, merged or for each tensor."""

    launches: int
    merged: bool = True
    norm_reads_param: bool = True


class Routine(NamedTuple):
    """A routine: its slots in order, its numbers, its named choices (the first is the default), its forms."""

    name: str
    slots: tuple[Slot, ...]
    hypers: tuple[Hyper, ...]
    choices: Mapping[str, tuple[str, ...]]
    forms: Mapping[str, Form]
    traffic: Callable[..., dict[str, int]]
    source: str

    @property
    def merged_name(self) -> str:
        return "merged_" + self.name

    @property
    def slot_names(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots)

    def launches(self, specs: Iterable[Spec], form: str) -> int:
        """Launches of one step: elements there are none of cost none; each dtype signature has its own."""
        specs = [spec for spec in specs if spec.size]
        units = {spec.dtypes for spec in specs} if self.forms[form].merged else specs
        return len(units) * self.forms[form].launches

    def bytes(self, specs: Iterable[Spec], form: str, **choices: str) -> int:
        """Bytes of the slots that one step reads and writes; tables and partial sums are not in it."""
        total = 0
        for spec in specs:
            passes = self.traffic(self.forms[form], spec.dtypes, **choices)
            sizes = {n: SIZES[d] for n, d in zip(self.slot_names, spec.dtypes, strict=True) if d}
            total += spec.size * sum(passes[name] * size for name, size in sizes.items())
        return total


def _lars_traffic(form: Form, dtypes: tuple, norm_of: str = "param", **_: str) -> dict[str, int]:
    """Passes over each slot, reads and writes added up. The gradient is read for the norm and again."""
    master = dtypes[3] is not None
    passes = {"params": 1 if master else 2, "grads": 2, "velocities": 2, "master_params": 2}
    if form.norm_reads_param:
        passes["master_params" if master and norm_of == "master" else "params"] += 1
    return passes


LARS_MOMENTUM = Routine(
    name="lars_momentum",
    slots=(
        Slot("params", written=True),
        Slot("grads", written=False),
        Slot("velocities", written=True),
        Slot("master_params", written=True, optional=True),
    ),
    hypers=(
        Hyper("lr", None, per_tensor=True),
        Hyper("mu", None),
        Hyper("lars_coeff", 0.001),
        Hyper("lars_weight_decay", 0.0005, per_tensor=True),
        Hyper("epsilon", 0.0),
        Hyper("rescale_grad", 1.0, positive=True),
    ),
    choices={"adapt": ("norms", "decay", "decay_and_norms"), "norm_of": ("param", "master")},
    forms={
        "separate": Form(launches=1, merged=False),
        "cooperative": Form(launches=1),
        "two_launches": Form(launches=2),
        "carried_norm": Form(launches=2, norm_reads_param=False),
    },
    traffic=_lars_traffic,
    source="arXiv:1708.03888; Paddle PR 35476",
)

ROUTINES = {routine.name: routine for routine in (LARS_MOMENTUM,)}
