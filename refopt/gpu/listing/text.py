"""The listing: the parts in the order of the calls, each under a name of its own, with the PTX of intrinsics."""

import builtins
import keyword
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, compress, count
from pathlib import Path
from typing import Any, NamedTuple

from refopt.catalog import Routine
from refopt.gpu.listing.parts import REFERENCE, Constant, Named, Part, Parts
from refopt.gpu.listing.wrap import wrapped
from refopt.gpu.machine import OLDEST, dotted
from refopt.gpu.target import TYPES, Compilable

WIDTH = 120
MANY = 8  # operands in a row, and results, from which on they are not written out


class Listing(NamedTuple):
    """The text, and by name each function or kernel in it."""

    text: str
    functions: dict[str, Any]


def listing(kernels: Sequence[Compilable], header: str = "") -> Listing:
    """All code of some kernels as a Python text: callers before callees, in the order of the calls.

    Raises:
        OSError: a function has no file that can be read.
    """
    parts, tops = _parts_of(kernels)
    order = _ordered(tops, parts)
    constants: dict[Constant, dict[Named, None]] = {}
    for part in order:
        _put_constants(part.text + part.above, parts, constants)
    names = _names(order, [x for used in constants.values() for x in used], parts, tops)

    def filled(text: str, own: str = "") -> str:
        return REFERENCE.sub(lambda found: names[parts.all[int(found[1])]], text).replace("\ue004", own)

    blocks = [_block(part, filled, names[part], tops.get(part)) for part in order]
    numbers = [filled(constant.text, names[next(iter(used))]) for constant, used in constants.items()]
    of_closures = ["\ue004" in constant.text for constant in constants]
    groups = ("\n".join(compress(numbers, flags)) for flags in ([not x for x in of_closures], of_closures))
    body = "\n\n\n".join(filter(None, ["\n\n".join(filter(None, groups)), *blocks]))
    about = [header.rstrip("\n")] if header else [f"# {line}" for kernel in kernels for line in _made_by(kernel)]
    top = "\n".join(about) + f"\n\n{_imports(parts, body)}"
    return Listing(
        f"{top}\n\n{'' if numbers else chr(10)}{body}\n",
        {names[part]: tops.get(part, part.function) for part in order},
    )


def _names(
    order: Sequence[Part], named: Iterable[Named], parts: Parts, tops: dict[Part, Compilable]
) -> dict[Part | Named, str]:
    """A name for each function and constant: its own, or where that is taken or is a local of its user, another.

    A function that is called by its own name has it before one that is called by another.
    """
    names: dict[Part | Named, str] = {part: kernel.name for part, kernel in tops.items()}
    taken = {*names.values(), *dir(builtins), *keyword.kwlist, "np", "cuda", "memory"}
    hidden: dict[Part | Named, set[str]] = {}
    for part in order:
        for number in part.numbers():
            hidden.setdefault(parts.all[number], set()).update(part.own)
    called = sorted((part for part in order if part not in tops), key=lambda part: part.base not in part.aliases)
    every: list[Part | Named] = [*named, *called]
    for one in every:
        dtype = getattr(getattr(one, "value", None), "dtype", None)
        others = sorted(one.aliases) if isinstance(one, Part) else [f"{one.base}_{dtype}"] * bool(dtype)
        choices = chain([one.base, *others], (f"{one.base}_{n}" for n in count(2)))
        names[one] = next(x for x in choices if x not in taken and x not in hidden.get(one, ()))
        taken.add(names[one])
    return names


def _parts_of(kernels: Sequence[Compilable]) -> tuple[Parts, dict[Part, Compilable]]:
    """All functions, and which of them are the kernels."""
    parts = Parts()
    tops = {parts.part(kernel.function): kernel for kernel in dict.fromkeys(kernels)}
    for part, kernel in tops.items():
        part.base = kernel.name
    return parts, tops


def _made_by(kernel: Compilable) -> list[str]:
    """A kernel's name, and what made it of what."""
    if kernel.origin is None:
        return [kernel.name]
    factory, args = kernel.origin
    text = f"{kernel.name}, made by {factory.__module__}.{factory.__name__}({', '.join(map(_short, args))})"
    return textwrap.wrap(text, WIDTH - 2, subsequent_indent="    ")


def _short(value: Any) -> str:
    """An argument of a factory; types and rows of the catalogue by their names."""
    if isinstance(value, Routine):
        return value.name
    if isinstance(value, type):
        return value.__name__
    return f"({', '.join(map(_short, value))})" if isinstance(value, tuple) else str(value)


def _ordered(tops: dict[Part, Compilable], parts: Parts) -> list[Part]:
    """The functions, each below all that call it, and as far as that leaves open in the order of the calls."""
    done: dict[Part, None] = {}  # callees first, those that are called last before the others

    def visit(part: Part) -> None:
        references = dict.fromkeys(REFERENCE.findall(part.text + part.above))
        for called in (parts.all[int(number)] for number in reversed(references)):
            if isinstance(called, Part) and called not in done:
                visit(called)
        done[part] = None

    for part in reversed(tops):
        visit(part)
    return [*reversed(done)]


def _put_constants(text: str, parts: Parts, constants: dict[Constant, dict[Named, None]]) -> None:
    """Put the constants that a text uses after those that they are made of."""
    for number in REFERENCE.findall(text):
        if isinstance(named := parts.all[int(number)], Named):
            _put_constants(named.constant.text, parts, constants)
            constants.setdefault(named.constant, {})[named] = None


def _imports(parts: Parts, body: str) -> str:
    """The import statements of what is used, in three blocks: Python's, NumPy, refopt's."""
    used = [x for name, x in parts.imports.items() if re.search(rf"\b{name}\b", body)]
    of: dict[str, list[str]] = {}
    for module, _, name in (x.partition(" import ") for x in used):
        of.setdefault(module, []).append(name)
    lines = [f"{module} import {', '.join(sorted(names))}" if names[0] else module for module, names in of.items()]
    blocks: list[list[str]] = [[], [], []]
    for line in sorted(lines, key=lambda line: (line.startswith("from"), line)):
        blocks[1 if line.startswith("import numpy") else 2 * line.startswith("from refopt")].append(line)
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _block(part: Part, filled: Callable[..., str], name: str, kernel: Compilable | None) -> str:
    """A function with what stands above it, and the file that it is from."""
    above = [filled(part.above)] if part.above else []
    if kernel:
        bounds = f"(launch_bounds={kernel.launch_bounds})" if kernel.launch_bounds else ""
        above = [f"@cuda.jit{bounds}"]
    elif not above:
        above = ["@cuda.jit(device=True)"]
    text = part.text
    if part.asm is not None:
        kinds = [f'"{TYPES[letter]}"' for letter in part.asm[2]]
        types = f"*[{kinds[0]}] * {len(kinds)}" if len(kinds) > MANY and len({*kinds}) == 1 else ", ".join(kinds)
        above = [*_ptx(*part.asm, *part.newer), f"@ptx_twin({types})"]
        text += "\n    raise NotImplementedError" * part.function.alone  # type: ignore[attr-defined]
    module = part.function.__module__ or ""
    if file := getattr(sys.modules.get(module), "__file__", None):
        package = "/__init__" * (Path(file).stem == "__init__")
        above[-1] += f"  # {module.replace('.', '/')}{package}.py"
    return "\n".join([*above, wrapped(filled(text, name), WIDTH)])


def _ptx(
    asm: str, constraints: str, result: str, arguments: str, since: tuple[int, int], before: str | None, alone: bool
) -> list[str]:
    """A comment of the instructions of an intrinsic, which run in place of the function below."""
    said = [_operands(0, len(result), "returned"), _operands(len(result), len(arguments), "passed")]
    if newer := since > OLDEST:
        later = " alone" if alone else " on, before it " + ("as below" if before else "nothing")
        said.append(f"{'on' if alone else 'from'} compute capability {dotted(since)}{later}")
    lines = _indented(asm)
    if newer and before:
        lines += [f"# PTX before {dotted(since)}:", *_indented(before)]
    return [f"# PTX: {'; '.join(filter(None, said))}".rstrip(": "), *lines]


def _indented(asm: str) -> list[str]:
    """The instructions of an intrinsic as lines of a comment."""
    asm = re.sub(rf"(\$\d+, ){{{MANY},}}\$\d+", _range, asm)
    return [f"#     {line}" for line in _instructions([x.strip() for x in re.findall(r"[^;]*;|[^;]+$", asm)])]


def _range(found: re.Match[str]) -> str:
    """Operands that follow each other, by the first and the last."""
    numbers = [int(x[1:]) for x in found[0].split(", ")]
    return f"${numbers[0]}, ..., ${numbers[-1]}" if numbers == [*range(numbers[0], numbers[-1] + 1)] else found[0]


def _instructions(asm: Sequence[str]) -> list[str]:
    """The instructions line by line; those of one kind share a line, and repeated groups appear once."""
    for first in range(len(asm)):
        for length in range(6, (len(asm) - first) // 3 + 1):
            part, times = asm[first : first + length], 1
            while asm[first + times * length : first + (times + 1) * length] == part:
                times += 1
            if times > 2:
                again = [f"{times} times:", *(f"    {line}" for line in _instructions(part))]
                return [*_instructions(asm[:first]), *again, *_instructions(asm[first + times * length :])]
    lines: list[str] = []
    kind = ""
    for instruction in asm:
        before, kind = kind, instruction.lstrip("{ ").split(" ")[0]
        if lines and kind in (before, "}") and len(lines[-1]) + len(instruction) < WIDTH - 10:
            lines[-1] += f" {instruction}"
        else:
            lines.append(instruction)
    return lines


def _operands(first: int, count: int, what: str) -> str:
    """The role of some operands, in words."""
    if count < 2:
        return f"${first} is {what}" if count else ""
    return f"${first} {'and' if count == 2 else 'to'} ${first + count - 1} are {what}"
