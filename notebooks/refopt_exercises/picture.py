"""What the threads of an answer touch, drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from refopt import simt

from .arguments import arrays
from .verdict import wrong
from .witness import Run, quoted


def picture(seen: Run, names: Iterable[str], only: Sequence[str], launch: int) -> Any:
    """A picture of a launch; words if nothing has been touched that could be drawn.

    Args:
        seen: the run.
        names: of the arguments.
        only: names of the arrays to draw; all if there are none.
        launch: its number; -1 is the last.
    """
    launches = seen.log.profile.accesses
    chosen = [array for name, array in arrays(seen.args, names) if name in only]
    touched = {launches[launch].arrays[n].base for n in set(launches[launch].array)} if launches else set()
    if not (touched & {array.buffer.base for array in chosen} if only else touched):
        return wrong(f"No thread has touched {', '.join(only) or 'an array'} yet, so there is nothing to draw.")
    drawn = simt.draw(seen.log, chosen or None, launch % len(launches))
    if seen.error is None:
        return drawn
    words = f"Then it ended: {quoted(str(seen.error)).splitlines()[0]}"  # an access out of bounds has no mark
    drawn.figure.suptitle(words, fontsize=8, x=0.01, ha="left")
    return drawn._replace(alt=f"{drawn.alt} {words}.")
