"""How many ops a step has, before and after the passes: the formulae.

For P tensors, of which D have dense gradients, S kinds of scalars, G groups, and U units of at least two tensors with
the same signature of dtypes:

::

    type               before     after                    with
    backward           P          P
    all_reduce         D          G                        several ranks
    all_gather         P - D      P - D                    several ranks
    scatter_add        P - D      P - D
    scale              P          G + P - D, or 0          several ranks; 0 once updates form the averages
    scale, further     S * P      S * U + S * (P - D)      powers advanced apart
    the routine        P          U + P - D
    coalesce_tensor    0          U * (slots - 1) + B      B buffers of gradients, in the flat form

Slots are those in use: parameters, gradients, states, scalars, masters. So Adam takes 5 ``coalesce_tensor`` ops and one
for the gradients, momentum 2 and one, SGD 1 and one.
"""

from __future__ import annotations

from collections.abc import Collection

from refopt.catalog import Routine
from refopt.checks.arguments import chosen, names
from refopt.program.counts.arguments import check_plain, nonzero


def step(
    routine: Routine, tensors: int, *, sparse: int = 0, world_size: int = 1, early: bool = False
) -> dict[str, int]:
    """Ops of a step by type, as `refopt.program.step_program` makes it.

    Args:
        routine: the optimizer.
        tensors: the number of parameters.
        sparse: how many of them have sparse gradients.
        world_size: the number of ranks.
        early: whether ``scale`` ops advance the scalars.
    """
    check_plain("step", routine, early=early, tensors=tensors, sparse=sparse, world_size=world_size)
    ranks = world_size > 1
    return nonzero({
        "backward": tensors,
        "all_reduce": ranks * (tensors - sparse),
        "all_gather": ranks * sparse,
        "scatter_add": sparse,
        "scale": ranks * tensors + early * len(routine.scalars) * tensors,
        routine.name: tensors,
    })


def fused_step(
    routine: Routine, tensors: int, *, sparse: int = 0, world_size: int = 1, early: bool = False,
    groups: int | None = None, units: int = 1, form: str = "flat", folded: bool = False,
) -> dict[str, int]:
    """Ops of a step by type after `fuse_all_reduce` and `fuse_optimizer`.

    Args:
        routine, tensors, sparse, world_size, early: as in `step`.
        groups: the number of groups of gradients; ``None`` if all-reduces have not been fused.
        units: the number of signatures of dtypes, each of at least two dense tensors; in the flat form, the number of
            pairs of signature and buffer.
        form: ``"flat"`` or ``"merged"``.
        folded: whether `fold_averages` ran last, and declined nothing.
    """
    sizes = {"tensors": tensors, "sparse": sparse, "world_size": world_size, "units": units}
    sizes |= {} if groups is None else {"groups": groups}
    check_plain("fused_step", routine, early=early, folded=folded, **sizes)
    chosen("fused_step: form", form, ("flat", "merged"))
    dense, ranks = tensors - sparse, world_size > 1
    reduced = dense if groups is None else groups
    fused = routine.name if form == "flat" else routine.merged_name
    counts = step(routine, tensors, sparse=sparse, world_size=world_size) | {
        "all_reduce": ranks * reduced,
        "scale": ranks * (not folded) * (reduced + sparse) + early * len(routine.scalars) * (units + sparse),
        routine.name: sparse,
    }
    counts[fused] = counts.get(fused, 0) + units
    return nonzero(counts)


def coalesce_ops(routine: Routine, *, optional: Collection[str] = (), units: int = 1, gradients: int = 0) -> int:
    """The ``coalesce_tensor`` ops at startup after `fuse_optimizer` in the flat form.

    Args:
        routine: the optimizer.
        optional: the optional slots in use, such as ``master_params``.
        units: as in `fused_step`.
        gradients: buffers of gradients, whichever pass made them: one for each unit, if `fuse_optimizer` does.
    """
    check_plain("coalesce_ops", routine, units=units, gradients=gradients)
    optional = names("coalesce_ops: optional", optional)
    slots = [slot for slot in routine.slots if slot.name != "grads" and (not slot.optional or slot.name in optional)]
    return units * len(slots) + gradients
