"""Functions that unroll what a kernel cannot loop over: a thread's eight elements, and the arrays of an optimizer.

Registers have no index. The compiler must unroll a loop over values in registers, and Numba does not compile a loop
that builds a tuple of them. So `map8` writes out eight calls. The number of arrays that a kernel loads, and the
functions for it, depend on the optimizer and its dtypes, and Numba cannot index functions. So these functions are
assembled from text. The docstring of each maker shows an example of its output, and a test compares the two. The text
is ordinary code: tracebacks, ``inspect.getsource`` and ``refopt show`` print it.
"""

import inspect
import linecache
import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from types import CodeType

from refopt.gpu.target import device_function

MAKERS = (__name__,)
_files = count()


def written(name: str, parameters: str, lines: Sequence[str], **scope: object) -> Callable:
    """A device function from the text of its body's lines, which may use the names in ``scope``."""
    text = f"def {name}({parameters}):\n" + "".join(f"    {line}\n" for line in lines)
    maker = sys._getframe(1)
    while maker.f_globals["__name__"] in MAKERS and maker.f_back:
        maker = maker.f_back
    namespace = scope | {"__name__": maker.f_globals["__name__"]}  # of the module that calls `written`
    exec(_code(text, name), namespace)
    return device_function(namespace[name])  # type: ignore[arg-type]


@cache  # the same text is the same file, which the executor reads once
def _code(text: str, name: str) -> CodeType:
    file = f"<unrolled {next(_files)}: {name}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    return compile(text, file, "exec")


def named(function: Callable, *words: str) -> Callable:
    """Name a function that a factory makes, for listings and tracebacks, by joining the nonempty words.

    Functions of the same text for different dtypes have different names, such as load8_float32 and load8_float16.
    """
    function.__name__ = function.__qualname__ = "_".join(filter(None, words))
    return function


def gather(name: str, item: str, parameters: str, size: int, **scope: object) -> Callable:
    """A function that returns a tuple of ``size`` values, each from an expression in its index ``{k}``.

    ``gather("hypers_of", "hyper[{k}, tensor]", "hyper, tensor", 3)``, for SGD, makes::

        def hypers_of(hyper, tensor):
            return (hyper[0, tensor], hyper[1, tensor], hyper[2, tensor])
    """
    values = tuple_of([item.format(k=k) for k in range(size)])
    return written(name, parameters, [f"return {values}"], **scope)


def map8(function: Callable, arrays: int) -> Callable:
    """Apply a function of one element of each array, and of shared values, to a thread's eight elements.

    An array is a tuple of eight elements, and so are the results. For ``step(v, g, k)``, a function of two arrays, it
    makes::

        def step8(vs, gs, k):
            return (function(vs[0], gs[0], k), function(vs[1], gs[1], k), ...)

    If the function returns a tuple, `transposed` makes an array of each of its numbers.
    """
    own = [*inspect.signature(function).parameters]
    lists, common = [f"{x}s" for x in own[:arrays]], own[arrays:]
    call = f"function({', '.join([*(f'{x}[{{k}}]' for x in lists), *common])})"
    return gather(f"{function.__name__}8", call, ", ".join(lists + common), 8, function=function)


def tuple_of(parts: Sequence[str]) -> str:
    """A tuple of expressions, as text."""
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
