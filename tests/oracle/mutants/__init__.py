"""Steps that are wrong in one place: each an edit of the text of a library that is right (`oracle.mutants.library`).

A mutant has the law that should fail, and where it comes from: an issue, or that it is easily written.
"""

import functools
import types
from pathlib import Path
from typing import Any, NamedTuple

LIBRARY = Path(__file__).parent / "library"
WRITTEN = "easily written"
FP16, BF16, FP64 = ("float16",), ("bfloat16",), ("float64",)
# Where edits are, and what of the text they replace, or add something to.
APPLY, LAUNCH, SUM = "launcher.multi_tensor_apply", "launcher.launch", "launcher.block_sum"
NORMS, UPDATE, DENSE = "launcher.l2norms", "steps.update", "steps.dense"
KERNEL, STORE, FUNCTOR = "        kernel(", "            p[...] = new", "new, _, *values ="
ARRAYS = "[values[t][start:stop] for values in lists]"
FLAT = "[[dense(values[i]) for i in indices] for values in (params, grads, *lists)]"
GRADIENT, GATE = "g.astype(real) * real(scale)", "    if skipped(found_inf):\n        return\n"


class Edit(NamedTuple):
    """Text of a function, ``launcher.launch``, or of a module outside of functions, ``launcher``, that is replaced."""

    where: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A row of the table.

    Attributes:
        name: what is wrong.
        routine: of the catalogue.
        law: the id of the law that should fail.
        edits: of the library.
        source: the issue, or that it is easily written.
        dtypes: of the parameters, that show it.
        reason: a pattern that the name matches which a diagnosis gives it, if that is to have one.
    """

    name: str
    routine: str
    law: str
    edits: tuple[Edit, ...]
    source: str = WRITTEN
    dtypes: tuple[str, ...] = ("float32",)
    reason: str = ""

    def step(self) -> Any:
        """The step, with the defect; another one in each call."""
        step = built(self.edits)[self.routine]
        step.__qualname__ = step.__name__ = self.name.replace(" ", "_")
        return step


def mutant(name: str, routine: str, law: str, *edits: tuple[str, str, str], **more: Any) -> Mutant:
    return Mutant(name, routine, law, tuple(Edit(*edit) for edit in edits), **more)


@functools.cache
def text(module: str) -> str:
    return (LIBRARY / f"{module}.py").read_text()


def built(changes: tuple[Edit, ...] = ()) -> dict[str, Any]:
    """The steps of the library with some changes of its text, by routine."""
    texts = {module: text(module) for module in ("launcher", "functors", "steps")}
    for where, old, new in changes:
        module, _, function = where.partition(".")
        start, stop = extent(texts[module], function)
        part = texts[module][start:stop]
        assert old in part, f"{where}: {old!r} is not in its text"
        texts[module] = texts[module][:start] + part.replace(old, new) + texts[module][stop:]
    names: dict[str, Any] = {}
    exec(texts["launcher"], names)
    functors = types.ModuleType("functors")
    exec(texts["functors"], functors.__dict__)
    names["functors"] = functors
    kept = [line for line in texts["steps"].splitlines() if not line.startswith("from oracle.")]
    exec("\n".join(kept), names)
    return names["STEPS"]


def extent(source: str, function: str) -> tuple[int, int]:
    """Where a function stands in a text; all of it without a name."""
    if not function:
        return 0, len(source)
    start = source.index(f"\ndef {function}(")
    ends = [k for k in (source.find("\n\n\n", start + 1),) if k >= 0]
    return start, min(ends, default=len(source))
