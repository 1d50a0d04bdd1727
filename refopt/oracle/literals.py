"""Arrays, numbers and functions as Python source, for scripts that reproduce a failure."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refopt.oracle.exact.cases import memory


class Literals(NamedTuple):
    """How the arrays of a library are written.

    Attributes:
        imports: lines of imports.
        array: makes the text from a NumPy array.
        numbers: an expression in ``array`` that gives its elements as a NumPy array of fp64.
    """

    imports: str
    array: Callable[[Any], str]
    numbers: str


def library_of(arrays: Any) -> Literals:
    """How the arrays of a subject are written, from the object that makes them."""
    return library_named(type(arrays).__name__, str(getattr(arrays, "device", "cpu")))


def library_named(kind: str, device: str) -> Literals:
    """The same, from the name of the class that makes them and the device."""
    at = "" if device == "cpu" else f", device={device!r}"
    if kind == "Torch":
        numbers = "array.detach().double().cpu().numpy()"
        return Literals("import torch", lambda x: _array(x, "torch.tensor", "torch.", "dtype=", at), numbers)
    if kind == "Jax":
        imports = "import jax\nimport jax.numpy as jnp"
        return Literals(imports, lambda x: _array(x, "jnp.array", "jnp."), "np.asarray(array).astype(np.float64)")
    if kind == "CuPy":
        return Literals("import cupy", lambda x: _array(x, "cupy.array", "cupy."), "cupy.asnumpy(array).astype(float)")
    return Literals("", lambda x: _array(x, "np.array", "np."), "np.asarray(array).astype(np.float64)")


def _array(x: Any, make: str, prefix: str, keyword: str = "", at: str = "") -> str:
    """A NumPy array as a literal; its elements are written in memory order, and the copy has the same order."""
    if x is None:
        return "None"
    dtype = ("ml_dtypes." if prefix == "np." and x.dtype.name == "bfloat16" else prefix) + x.dtype.name
    elements = f"{make}([{', '.join(_element(v) for v in memory(x).ravel())}], {keyword}{dtype}{at})"
    if x.ndim == 1:
        return elements
    if x.flags.c_contiguous:
        return f"{elements}.reshape({x.shape})"
    axes = sorted(range(x.ndim), key=lambda k: -x.strides[k])
    stored = tuple(x.shape[k] for k in axes)
    turn = "permute" if make == "torch.tensor" else "transpose"
    return f"{elements}.reshape({stored}).{turn}({', '.join(str(axes.index(k)) for k in range(x.ndim))})"


def _element(x: Any) -> str:
    value = x.item()
    if isinstance(value, int):
        return str(value)
    value = float(value)
    return repr(value) if np.isfinite(value) else ("np.nan" if value != value else "np.inf" if value > 0 else "-np.inf")


def floats(values: np.ndarray) -> str:
    """Numbers as a list."""
    return f"[{', '.join(_element(x) for x in values)}]"


def number(value: Any, of: Literals) -> str:
    """A number, an array of one, or a list of numbers."""
    if isinstance(value, np.ndarray):
        return of.array(value)
    if isinstance(value, list | tuple):
        inner = ", ".join(number(x, of) for x in value)
        return f"({inner})" if isinstance(value, tuple) and len(value) > 1 else f"[{inner}]"
    return repr(value.item() if isinstance(value, np.generic) else value)


def lists(values: list[str]) -> str:
    """A list, with a line for each entry if it is long."""
    text = f"[{', '.join(values)}]"
    return text if len(text) <= 110 else "[\n    " + ",\n    ".join(values) + ",\n]"


def definition(thing: Any, name: str) -> str:
    """How a script gets a function or class: by import or, if a script defines it, by its source."""
    module, own = getattr(thing, "__module__", "__main__"), getattr(thing, "__qualname__", "")
    if module != "__main__" and own.isidentifier():
        return f"from {module} import {own} as {name}\n"
    try:
        text = textwrap.dedent(inspect.getsource(thing)).rstrip()
    except (OSError, TypeError):
        text = ""
    if not text.startswith(("def ", "class ")):
        return f"# Define {own or 'it'} here, as {name}.\n"
    return f"\n\n{text}\n\n\n{name} = {thing.__name__}\n"
