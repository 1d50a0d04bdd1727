"""What a kernel cannot loop over, written out: a thread's eight elements, and the arrays of an optimizer.

Registers have no index. A loop over values that are in registers is possible only if the compiler unrolls it, and one
that makes a tuple of them is none that Numba compiles. So eight elements stand side by side, in what `map8` makes. How
many arrays a kernel loads, and each by which function, depends on the optimizer and its dtypes, and Numba cannot call
one of several functions by a number. So such functions are made as text; each maker shows what it makes. It is plain
code: tracebacks, ``inspect.getsource`` and ``refopt show`` have it.
"""

import linecache
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from types import CodeType

from refopt.gpu.target import device_function

_files = count()


def written(name: str, parameters: str, lines: Sequence[str], **scope: object) -> Callable:
    """A device function from the text of its body's lines, which may use the names in ``scope``."""
    text = f"def {name}({parameters}):\n" + "".join(f"    {line}\n" for line in lines)
    namespace = dict(scope)
    exec(_code(text, name), namespace)
    return device_function(namespace[name])  # type: ignore[arg-type]


@cache  # the same text is the same file, which the executor reads once
def _code(text: str, name: str) -> CodeType:
    file = f"<unrolled {next(_files)}: {name}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    return compile(text, file, "exec")


def gather(item: str, parameters: str, size: int, name: str = "gather", **scope: object) -> Callable:
    """A tuple of so many values, each from an expression in its number ``{k}``. Of ``hyper[{k}, tensor]``, for SGD::

        def gather(hyper, tensor):
            return (hyper[0, tensor], hyper[1, tensor], hyper[2, tensor])
    """
    values = tuple_of([item.format(k=k) for k in range(size)])
    return written(name, parameters, [f"return {values}"], **scope)


def map8(function: Callable, arrays: int, common: int = 1) -> Callable:
    """A function of one element of so many arrays, and of what is common to all, applied to a thread's eight.

    An array is a tuple of eight, and so are the results. Of a function of two arrays and k it makes::

        def map8(x0, x1, k):
            return (function(x0[0], x1[0], k), function(x0[1], x1[1], k), ...)

    Where the function returns a tuple, `transposed` makes an array of each of its numbers.
    """
    xs, ks = [f"x{n}" for n in range(arrays)], [f"k{n or ''}" for n in range(common)]
    call = f"function({', '.join([*(f'{x}[{{k}}]' for x in xs), *ks])})"
    return gather(call, ", ".join(xs + ks), 8, "map8", function=function)


def tuple_of(parts: Sequence[str]) -> str:
    """A tuple of expressions, as text."""
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
