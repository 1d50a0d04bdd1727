"""What a kernel cannot loop over, written out: a thread's eight elements, and the arrays of an optimizer.

Registers have no index. A loop over values that are in registers is possible only if the compiler unrolls it, and one
that makes a tuple of them is none that Numba compiles. So eight elements stand side by side, in `map8`, once for all.

How many arrays a kernel loads, and each by which function, depends on the optimizer and its dtypes. Numba cannot call
one of several functions by a number, so these calls are made as text, by `loader`, `storer` and `gather`; each shows
what it makes. It is plain code: tracebacks, ``inspect.getsource`` and ``refopt show`` have it.
"""

import linecache
from collections.abc import Callable, Sequence
from itertools import count

from refopt.gpu.target import device_function, transposed

_files = count()


def map8(function: Callable) -> Callable:
    """``mapped(arrays, *common)``: a function of one element of each array, applied to a thread's eight.

    An array is a tuple of eight. What is common to all elements is passed on after them. The results are a tuple of
    eight; where the function returns a tuple, `transposed` makes an array of each of its numbers.
    """

    @device_function
    def mapped(arrays, *common):
        x = transposed(arrays)
        return (
            function(*x[0], *common), function(*x[1], *common),
            function(*x[2], *common), function(*x[3], *common),
            function(*x[4], *common), function(*x[5], *common),
            function(*x[6], *common), function(*x[7], *common),
        )  # fmt: skip

    mapped.__name__ = f"{function.__name__}8"
    return mapped


def eight(rule: Callable, arrays: int) -> Callable:
    """``rule8(values, rescale, k)``: a rule of p, g and states applied to eight elements of each.

    The results are a tuple of eight new elements for p and for every state.
    """

    @device_function
    def element(p, g, *rest):
        rescale, k = rest[-2:]
        return rule(p, rescale * g, *rest[:-2], k)

    elements = map8(element)

    @device_function
    def rule8(values, rescale, k):
        return transposed(elements(values, rescale, k))

    return rule8


def each(rule: Callable, arrays: int) -> Callable:
    """A function of one element of so many arrays and of something common, for eight elements: ``(x0, ..., k)``."""
    rule8 = map8(rule)

    @device_function
    def each(*arrays_and_k):
        return rule8(arrays_and_k[:-1], arrays_and_k[-1])

    return each


def written(name: str, parameters: str, lines: Sequence[str], **scope: object) -> Callable:
    """A device function from the text of its body's lines, which may use the names in ``scope``."""
    text = f"def {name}({parameters}):\n" + "".join(f"    {line}\n" for line in lines)
    file = f"<unrolled {next(_files)}: {name}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    namespace = dict(scope)
    exec(compile(text, file, "exec"), namespace)
    return device_function(namespace[name])  # type: ignore[arg-type]


def loader(loads: Sequence[tuple[tuple[int, ...], Callable]]) -> Callable:
    """Eight elements of several arrays, given the rows of addresses and the load of each. For Adam with a master::

        def load(addresses, tensor, i, stop):
            return (
                load0(addresses[0, tensor], addresses[7, tensor], i, stop),
                load1(addresses[1, tensor], i, stop),
                load2(addresses[2, tensor], i, stop),
                load3(addresses[3, tensor], i, stop),
            )

    No load waits for the one before it, so the latency of all is that of one.
    """
    parts = [f"load{n}({_at(rows)}, i, stop)" for n, (rows, _) in enumerate(loads)]
    scope = {f"load{n}": load for n, (_, load) in enumerate(loads)}
    return written("load", "addresses, tensor, i, stop", [f"return {_tuple(parts)}"], **scope)


def storer(stores: Sequence[tuple[tuple[int, ...], Callable, str]]) -> Callable:
    """The way back, given also what each store takes. For Adam with a master::

        def store(addresses, tensor, i, stop, exact, rounded):
            store0(addresses[0, tensor], addresses[7, tensor], i, stop, exact[0], rounded[0])
            store1(addresses[2, tensor], i, stop, rounded[1])
            store2(addresses[3, tensor], i, stop, rounded[2])
    """
    lines = [f"store{n}({_at(rows)}, i, stop, {what})" for n, (rows, _, what) in enumerate(stores)]
    scope = {f"store{n}": store for n, (_, store, _) in enumerate(stores)}
    return written("store", "addresses, tensor, i, stop, exact, rounded", lines, **scope)


def gather(item: str, parameters: str, size: int, **scope: object) -> Callable:
    """A tuple of so many values, each from an expression in its number ``{k}``. Of ``hyper[{k}, tensor]``, for SGD::

        def gather(hyper, tensor):
            return (hyper[0, tensor], hyper[1, tensor], hyper[2, tensor])
    """
    return written("gather", parameters, [f"return {_tuple([item.format(k=k) for k in range(size)])}"], **scope)


def _at(rows: Sequence[int]) -> str:
    return ", ".join(f"addresses[{row}, tensor]" for row in rows)


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
