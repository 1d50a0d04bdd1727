"""Device functions written out for a number of arrays, which a kernel cannot loop over.

What is made is plain code: tracebacks and ``inspect.getsource`` show it.
"""

import linecache
from collections.abc import Callable, Sequence
from itertools import count

from refopt.gpu.target import device_function

_files = count()


def function(name: str, parameters: str, lines: Sequence[str], **scope: object) -> Callable:
    """A device function from the lines of its body, which may use the names in ``scope``."""
    text = f"def {name}({parameters}):\n" + "".join(f"    {line}\n" for line in lines)
    file = f"<unrolled {next(_files)}: {name}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    namespace = dict(scope)
    exec(compile(text, file, "exec"), namespace)
    return device_function(namespace[name])  # type: ignore[arg-type]


def loader(loads: Sequence[tuple[tuple[int, ...], Callable]]) -> Callable:
    """``load(addresses, tensor, i, stop)``: eight elements of several arrays, given rows and load of each."""
    parts = [f"load{n}({_at(rows)}, i, stop)" for n, (rows, _) in enumerate(loads)]
    scope = {f"load{n}": load for n, (_, load) in enumerate(loads)}
    return function("load", "addresses, tensor, i, stop", [f"return {_tuple(parts)}"], **scope)


def storer(stores: Sequence[tuple[tuple[int, ...], Callable, str]]) -> Callable:
    """``store(addresses, tensor, i, stop, exact, rounded)``, given rows, store and what each stores of the latter."""
    lines = [f"store{n}({_at(rows)}, i, stop, {what})" for n, (rows, _, what) in enumerate(stores)]
    scope = {f"store{n}": store for n, (_, store, _) in enumerate(stores)}
    return function("store", "addresses, tensor, i, stop, exact, rounded", lines, **scope)


def _at(rows: Sequence[int]) -> str:
    return ", ".join(f"addresses[{row}, tensor]" for row in rows)


def eight(rule: Callable, arrays: int) -> Callable:
    """``rule8(values, rescale, k)``: a rule of p, g and states applied to eight elements of each.

    The results are a tuple of eight new elements for p and for every state.
    """
    lines = [f"p, g{''.join(f', s{n}' for n in range(arrays - 2))} = values"]
    for e in range(8):
        states = "".join(f"s{n}[{e}], " for n in range(arrays - 2))
        lines.append(f"y{e} = rule(p[{e}], rescale * g[{e}], {states}k)")
    columns = [_tuple([f"y{e}[{n}]" for e in range(8)]) for n in range(arrays - 1)]
    return function("rule8", "values, rescale, k", [*lines, f"return {_tuple(columns)}"], rule=rule)


def each(rule: Callable, arrays: int) -> Callable:
    """A function of one element of so many arrays and of something common, for eight elements: ``(x0, ..., k)``."""
    names = [f"x{n}" for n in range(arrays)]
    parts = [f"rule({', '.join(f'{name}[{e}]' for name in names)}, k)" for e in range(8)]
    return function("each", ", ".join([*names, "k"]), [f"return {_tuple(parts)}"], rule=rule)


def gather(item: str, parameters: str, size: int, **scope: object) -> Callable:
    """A tuple of so many values, each from an expression in its number ``{k}``."""
    return function("gather", parameters, [f"return {_tuple([item.format(k=k) for k in range(size)])}"], **scope)


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
