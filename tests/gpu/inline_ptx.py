"""Every block of inline PTX, what it says of its registers, and a kernel of PTX around it, for assemblers."""

import re
from collections.abc import Iterable, Iterator

from refopt.cpu.codes import ROOTS, SIGNED
from refopt.gpu import cast, codes, instructions, philox, remainder, tensor_core, vectors, words
from refopt.gpu.target import EXACT

# Those whose instructions a test follows one by one, and the others.
FOLLOWED = {
    name: value for module in (vectors, words, philox, cast, codes)
    for name, value in vars(module).items() if hasattr(value, "asm")
} | {**{f"{value.__name__} {dtype}": value for dtype, ways in remainder.JOINED.items() for value in ways},
     **{f"{name} {'signed' if kind.signed else 'roots'}": make(kind) for kind in (SIGNED, ROOTS)
        for name, make in (("load4_codes", codes.LOAD4.get), ("scale", codes.scale_of))},
     **{f"load4_float32 {x}": vectors.with_policy(vectors.load4_float32, x) for x in vectors.POLICIES}}
BLOCKS = FOLLOWED | {
    name: value for module in (instructions, tensor_core)
    for name, value in vars(module).items() if hasattr(value, "asm")
} | {value.__name__: value for value in tensor_core.MMA.values()} | {
    "wait_but": tensor_core.wait_but(1), "codes4 signed": codes.codes4(SIGNED), "codes4 roots": codes.codes4(ROOTS),
    **{f"{name} {x}": vectors.with_policy(value, x) for name, value in FOLLOWED.items() for x in vectors.POLICIES
       if name.startswith("load4") and "policy" not in value.asm[0]}}
REGISTERS = {"f": "f32", "d": "f64", "r": "b32", "l": "b64"}  # by LLVM's letters
# Stores of a part of a number, which ptxas up to CUDA 13.0 converts to an integer; later ones do so in a vector of u8.
PLANTED = [("{ .reg .b32 m; add.rn.f32 m, $1, $1; st.global.b8 [$0], m; }", "l,f"), ("st.global.b16 [$0], $1;", "l,f"),
           ("st.global.b32 [$0], $1;", "l,d"), ("{ .reg .b16 h; cvt.rn.f16.f32 h, $1; st.global.b8 [$0], h; }", "l,f"),
           ("{ .reg .b32 m; ld.global.f32 m, [$1]; st.global.v2.b8 [$0], {m, m}; }", "l,l")]


def operands_of(constraints: str) -> list[str]:
    """The constraints of operands, without what else a block changes."""
    return [x for x in constraints.split(",") if x.lstrip("=") in REGISTERS]


def listed(operand: str) -> list[str]:
    """The registers of an operand."""
    return re.findall(r"[^\s,{}]+", operand)


def statements(asm: str) -> Iterator[tuple[str, list[str]]]:
    """The instructions of a block, with their operands."""
    for line in asm.removeprefix(EXACT).split(";"):
        name, _, rest = re.sub(r"^(\s*[{}]\s)*\s*", "", line).partition(" ")
        if name not in ("", ".reg", "}"):
            yield name, re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^\s,]+", rest)


def parts_of_numbers(asm: str, constraints: str) -> list[str]:
    """The stores that take less than a register which an instruction of floats wrote, in the block or before it."""
    numbers = {f"${k}": int(REGISTERS[x[-1]][1:]) for k, x in enumerate(operands_of(constraints)) if x[-1] in "fd"}
    found = []
    for name, operands in statements(asm):
        kind = re.search(r"\.(b?f|[bus])(\d+)", name)  # the first is the result's
        if kind and name.startswith("st."):
            found += [name for x in listed(operands[1]) if numbers.get(x, 0) > int(kind[2])]
        elif kind:
            numbers |= dict.fromkeys(listed(operands[0]), int(kind[2]) if "f" in kind[1] else 0)
    return found


def kernels(blocks: Iterable[tuple[str, str]], capability: tuple[int, int]) -> str:
    """A kernel of PTX around each block and its constraints: k0, k1, ...

    Operands are parameters; numbers come from an instruction of floats, as in kernels. Results are stored.
    """
    text = [f".version 8.8\n.target sm_{capability[0]}{capability[1]}\n.address_size 64"]
    for number, (asm, constraints) in enumerate(blocks):
        operands = operands_of(constraints)
        kinds = [REGISTERS[x[-1]] for x in operands]
        taken = "".join(f", .param .{kind} p{k}" for k, kind in enumerate(kinds))
        text.append(f".visible .entry k{number}(.param .b64 out{taken}) {{")
        text += [f".reg .{kind} x{k}; ld.param.{kind} x{k}, [p{k}];" for k, kind in enumerate(kinds)]
        text += [f"add.rn.{kind} x{k}, x{k}, x{k};" for k, kind in enumerate(kinds) if kind[0] == "f"]
        text += [".reg .b64 results; ld.param.b64 results, [out];", re.sub(r"\$(\d+)", r"x\1", asm)]
        text += [f"st.global.{kinds[k]} [results + {8 * k}], x{k};" for k, x in enumerate(operands) if x[0] == "="]
        text.append("ret; }")
    return "\n".join(text) + "\n"
