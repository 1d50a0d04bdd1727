"""Whether a compiled kernel computes the same bits as its Python source: the PTX instructions that do not, and lines.

NumPy and the executor round each operation separately, to nearest even, in the type of its operands. Compiled code may
differ: the compiler may fuse a product and a sum, approximate a function, or compute in fp64 whatever is combined with
a Python constant. `check` compiles a kernel, without a GPU, and names the lines.

    >>> import numpy as np
    >>> from refopt.gpu import cuda
    >>> @cuda.jit
    ... def mix(x, decay):
    ...     x[0] = (1 - decay) * x[0]
    >>> finding = mix.inexact(np.zeros(1, np.float32), np.float32(0.9))[0]
    >>> finding.line, finding.text, finding.opcodes
    (3, 'x[0] = (1 - decay) * x[0]', ('cvt.f64.f32', 'mov.f64', 'sub.rn.f64', 'mul.rn.f64', 'cvt.rn.f32.f64'))
"""

import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from refopt.checks.arguments import flag, kind_of
from refopt.gpu.target import EXACT, Compilable, argument_spelled, no_compiler

# What changes bits: a pattern of the opcode, and why. The last is no fault in kernels meant for fp64.
RULES = [
    (r"^fma\.|^mad\..*f(32|64)", "a product and a sum with one rounding"),
    (r"\.approx|\.full|^(sin|cos|ex2|lg2|rsqrt|tanh)\.", "an approximation"),
    (r"\.ftz", "subnormal numbers become 0"),
    (r"^(add|sub|mul|div|sqrt|rcp)(?!.*\.rn\b).*\.b?f(16|32|64)", "not rounded to nearest even"),
    (r"^(atom|red)\..*\.add\..*f(16|32|64)", "a sum in the order in which threads arrive"),
    (r"\.f64", "fp64, into which a Python constant or an integer turns fp32; np.float32(...) does not"),
]

_Place = tuple[str, ...]  # of a .loc directive: number of the file, line, column
_Stack = tuple[tuple[str, int], ...]  # files and lines, the innermost function first


class Inexact(NamedTuple):
    """Instructions that change bits, all for one reason and from one line.

    Attributes:
        why: the reason.
        opcodes: of the instructions, each once, such as ``sub.rn.f64``.
        file, line: of their Python source, which may be in a device function.
        calls: file and line of the calls that lead there, the innermost first; the last is in the kernel.
    """

    why: str
    opcodes: tuple[str, ...]
    file: str
    line: int
    calls: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """The line of Python, if it can be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        calls = "".join(f", called at {Path(file).name}:{line}" for file, line in self.calls)
        return f"{Path(self.file).name}:{self.line}{calls}: {self.text}: {', '.join(self.opcodes)}: {self.why}"


def check(kernel: Compilable, *args: Any, double: bool = False, capability: tuple[int, int] = (9, 0)) -> list[Inexact]:
    """Compile a kernel to PTX and report every instruction whose result may differ from its Python source's.

    Args:
        kernel: of ``refopt.gpu.cuda.jit``, not of Numba.
        args: its arguments, or others of the same types: arrays of NumPy or of a device in C order, integers,
            numbers of type ``np.float32``; or the types in words, such as ``"float32[1]"``, ``"int64"``.
        double: whether fp64 is intended. If not, all fp64 is reported, since a constant or an integer causes it.
        capability: the compute capability to compile for.

    Returns:
        By lines, in the order of the PTX; an empty list if the kernel is exact.

    Raises:
        RuntimeError: no compiler is available; the message says why.
        TypeError: ``kernel`` is not a kernel, or takes other arguments.
    """
    if not isinstance(kernel, Compilable):
        raise TypeError(f"check: kernel: expected a kernel of refopt.gpu.cuda.jit, got {kind_of(kernel)}")
    double = flag("check: double", double)
    if len(args) != (takes := kernel.function.__code__.co_argcount):
        raise TypeError(f"check: args: expected {takes}, as {kernel.name} takes, got {len(args)}")
    words = [x if _is_type(x) else argument_spelled(f"check: args[{k}]", x) for k, x in enumerate(args)]
    if reason := no_compiler():
        raise RuntimeError(f"check: expected a compiler (pip install 'refopt[cuda13]'), got none: {reason}")
    return read(kernel.ptx(words, capability, lines=True), double)


def read(ptx: str, double: bool = False) -> list[Inexact]:
    """`check` for PTX text; without line directives, the file is "" and the line 0."""
    rules = RULES[:-1] if double else RULES
    opcodes_of: dict[tuple[str, _Stack], dict[str, None]] = {}
    proven = rf"{re.escape(EXACT)}.*?// end inline asm"  # which a test compares with its twin as a whole
    for opcode, stack in _placed(re.sub(proven, "", ptx, flags=re.DOTALL)):
        for why in (why for pattern, why in rules if re.search(pattern, opcode)):
            opcodes_of.setdefault((why, stack), {})[opcode] = None
    return [
        Inexact(why, tuple(opcodes), file, line, tuple(calls))
        for (why, ((file, line), *calls)), opcodes in opcodes_of.items()
    ]


def instructions(ptx: str) -> list[str]:
    """The opcodes of a PTX text, without predicates."""
    return [opcode for opcode, _ in _placed(ptx)]


def _placed(ptx: str) -> Iterator[tuple[str, _Stack]]:
    """Every opcode with the lines that it comes from."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", ptx, flags=re.DOTALL)
    # Functions of a prompt, or made from text, have file names in <>, which Numba assumes to be in the current folder.
    files = dict(re.findall(r'(?m)^\s*\.file\s+(\d+)\s+"(?:[^"\n]*/(?=<))?([^"\n]*)"', code))
    callers: dict[_Place, _Place | None] = {}
    stack: _Stack = (("", 0),)
    for line in code.splitlines():
        if place := re.match(r"\s*\.loc\s+(\d+) ([1-9]\d*) (\d+)(?:.*inlined_at (\d+) (\d+) (\d+))?", line):
            here, caller = place.group(1, 2, 3), place.group(4, 5, 6)
            callers[here] = caller if caller[0] else None
            stack = tuple((files.get(number, ""), int(at)) for number, at, _ in _outwards(here, callers))
        for opcode in re.findall(r"(?:^|[;{}:])\s*(?:@!?%?\w+\s+)?([a-z]\w*(?:[.:]+\w+)+)", line):
            yield opcode, stack


def _outwards(place: _Place | None, callers: dict[_Place, _Place | None]) -> Iterator[_Place]:
    """A place, where its function was inlined, where that function was, and so on to the kernel."""
    passed = set()
    while place and place not in passed:  # two functions on one line may appear to call each other
        yield place
        passed.add(place)
        place = callers.get(place)


def _is_type(arg: Any) -> bool:
    """Whether it is the type of an argument in words."""
    return isinstance(arg, str) and re.fullmatch(r"(u?int|float)(8|16|32|64)(\[\d\])?", arg) is not None
