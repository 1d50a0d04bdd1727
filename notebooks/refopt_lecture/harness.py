"""What the notebooks share: quoted sources, steps of both forms, records of measurements, the style of figures.

Importing it takes the style of `figures.mplstyle`, and has kernels run on the executor, with or without a GPU.
"""

import base64
import inspect
import io
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Code, display
from matplotlib.figure import Figure
from PIL import Image

from refopt import cpu, gpu, simt
from refopt.gpu.show import launches_of, request
from refopt.gpu.target import called

HERE = Path(__file__).parent
RESULTS = HERE / "results"  # of the wheel; in a clone they are the records themselves
if not RESULTS.is_dir():
    RESULTS = HERE.parents[1] / "benchmarks" / "results"

plt.style.use(HERE / "figures.mplstyle")
os.environ["REFOPT_DEVICE"] = "executor"


class Quote(Code):
    """Code in a font of fixed width, which nbconvert's pages do not give it, and without a third form, for LaTeX."""

    STYLE = "font-family: monospace; font-size: 13px; line-height: 1.3; white-space: pre; overflow-x: auto"

    def _repr_html_(self) -> str:
        return super()._repr_html_().replace("<pre>", f'<pre style="{self.STYLE}">')

    def _repr_latex_(self) -> None:
        return None


def source(*objects: Any) -> Code:
    """The source of functions, kernels or classes, quoted from the package."""
    texts = [textwrap.dedent(inspect.getsource(getattr(x, "function", x))).strip() for x in objects]
    return Quote("\n\n\n".join(texts), language="python")


def pair(title: str, ours: Any, theirs: Any, names: tuple[str, str] = ("NumPy", "GPU")) -> None:
    """Two sources side by side, in a section that is folded until it is opened."""
    sources = [source(*x) if isinstance(x, tuple) else source(x) for x in (ours, theirs)]
    columns = "".join(
        f'<div style="overflow-x: auto"><b>{name}</b>{code._repr_html_()}</div>'
        for name, code in zip(names, sources, strict=True)
    )
    grid = "display: grid; gap: 1em; font-size: 85%; grid-template-columns: repeat(auto-fit, minmax(30em, 1fr))"
    html = f'<details><summary>{title}</summary><div style="{grid}">{columns}</div></details>'
    plain = "\n\n".join(f"# {name}\n{code.data}" for name, code in zip(names, sources, strict=True))
    display({"text/html": html, "text/plain": f"{title}\n\n{plain}"}, raw=True)


def constants(*modules: Any) -> Code:
    """The lines of files that name their constants."""
    lines = [line for module in modules for line in inspect.getsource(module).splitlines()]
    return Quote("\n".join(line for line in lines if re.match("[A-Z, ]+ = [^{]", line)), language="python")


def kernel(build: Callable) -> Code:
    """The source of the kernel that a function builds, without the function around it."""
    text = inspect.getsource(inspect.unwrap(build))
    return Quote(inspect.cleandoc(text[text.index("    @kernel") : text.rindex("    return")]), language="python")


class Walk:
    """A walk through all functions that kernels consist of: a call quotes functions by their names.

    Attributes:
        left: the names of functions that have not been quoted yet, callers first.
    """

    def __init__(self, routine: str, *forms: str, dtype: str = "fp32", after: "Walk | None" = None) -> None:
        """Functions that an earlier walk has quoted are not left."""
        launches = [launches_of(request(routine, dtype, form)) for form in forms or (None,)]
        self._list([kernel for launch in launches for kernel in launch.kernels], after)

    @classmethod
    def of(cls, *kernels: Any, after: "Walk | None" = None) -> "Walk":
        """A walk through kernels that belong to no routine."""
        walk = cls.__new__(cls)
        walk._list(kernels, after)
        return walk

    def _list(self, kernels: Sequence, after: "Walk | None") -> None:
        self._texts: dict[str, dict[str, None]] = {}  # functions for two dtypes may have one text
        for function in chain(*(called(kernel.function) for kernel in kernels)):
            asm = getattr(function, "asm", None)
            ptx = textwrap.wrap(f"{function.__name__} on a GPU: {asm[0]}", 118) if asm else []
            above = "".join(f"# {line}\n" for line in (ptx if len(ptx) < 8 else [*ptx[:5], "..."]))
            text = above + textwrap.dedent(inspect.getsource(function)).strip()
            self._texts.setdefault(function.__name__, {})[text] = None
        self._quoted: set[str] = after._quoted if after else set()
        self.left = [name for name in self._texts if self._new(name)]

    def _new(self, name: str) -> list[str]:
        return [text for text in self._texts[name] if text not in self._quoted]

    def __call__(self, *names: str) -> Code:
        texts = [text for name in names for text in self._new(name) or self._texts[name]]
        self._quoted |= {*texts}
        self.left = [name for name in self.left if name not in names]
        return Quote("\n\n\n".join(dict.fromkeys(texts)), language="python")

    def known(self) -> "Walk":
        """The walk itself, with all that is left taken for quoted: what another notebook has quoted."""
        self(*self.left)
        return self


def differing_bytes(ours: Iterable[np.ndarray], theirs: Iterable[np.ndarray]) -> int:
    """How many bytes of two lists of arrays differ."""
    pairs = zip(ours, theirs, strict=True)
    return sum(int(np.count_nonzero(_bytes(a) != _bytes(b))) for a, b in pairs)


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), np.uint8)


def step_both(
    name: str, lists: Sequence, steps: int = 3, form: str | None = None, observe: dict | None = None, **numbers: Any
) -> tuple[gpu.Plan, Any, list, int]:
    """Steps of a routine, in NumPy and by its kernels on the executor, from the same arrays.

    Args:
        name: the routine's, such as "adamw".
        lists: params, grads, states, and masters or None; NumPy's, which the reference updates in place.
        steps: how many.
        form: how the kernels are launched, if the routine has a choice.
        observe: what `simt.observe` takes.
        numbers: the routine's, such as lr.

    Returns:
        The plan, what the executor saw of the last step, the arrays on the device in the order of `lists`, and how
        many bytes of them differ from NumPy's.
    """
    *arrays, masters = lists
    device = [values and [gpu.to_device(x) for x in values] for values in lists]
    forms = {"form": form} if form else {}
    plan = gpu.plan(name, *device[:-1], master_params=device[-1], **numbers, **forms)
    for _ in range(steps):
        getattr(cpu, f"merged_{name}")(*arrays, master_params=masters, **numbers)
        with simt.observe(**(observe or {})) as seen:
            plan()
    pairs = [(x.copy_to_host(), y) for ours, theirs in zip(device, lists, strict=True) if ours
             for x, y in zip(ours, theirs, strict=True)]
    return plan, seen, device, differing_bytes(*zip(*pairs, strict=True))


def record(name: str) -> dict[str, Any]:
    """A record of `benchmarks/results`, such as "optimizers-h200"; it says where and when it was measured."""
    report = json.loads((RESULTS / f"{name}.json").read_text())
    print(f"{report['device']}, torch {report['versions'].get('torch', '-')}, {report['date']}")
    return report


def figure(fig: Figure, alt: str) -> None:
    """Display a figure with a text for those who do not see it: ``metadata["image/png"]["alt"]`` of the output.

    IPython's `Image` keeps its text there, too. In a terminal the text is shown in the place of the figure. A palette
    of 128 colours makes the file small.
    """
    png = io.BytesIO()
    fig.savefig(png, format="png")
    plt.close(fig)
    small = io.BytesIO()
    Image.open(png).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    data = {"image/png": base64.b64encode(small.getvalue()).decode(), "text/plain": alt}
    display(data, metadata={"image/png": {"alt": alt}}, raw=True)
