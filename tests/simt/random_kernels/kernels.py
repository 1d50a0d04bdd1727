"""Whole kernels: `make(seed)` has the source, the arguments and the launch of one.

A thread writes only its own elements of the outputs, or meets the others in barriers, shuffles or commutative atomics.
"""

from typing import Any, NamedTuple

import numpy as np

from simt.random_kernels.inputs import COUNT, INTEGERS, RECORD, SIGNED, elements, family_of
from simt.random_kernels.statements import Statements

KINDS = [  # each with the upper bound of the draws that lead to it
    (50, "plain"), (62, "shared"), (72, "warp"), (81, "atomic"), (88, "half"), (93, "record"), (96, "complex"),
    (100, "stride")]


class Case(NamedTuple):
    """A kernel to launch with arrays and their number of elements.

    Attributes:
        source: a module that defines ``kernel``.
        arrays: (name, host array, whether it is an output) of each argument.
        launch: grid and block.
    """

    source: str
    arrays: list[tuple[str, Any, bool]]
    launch: tuple

    def on_device(self, cuda):
        """The arrays on a device; a strided one is a slice there."""
        return [
            cuda.to_device(x.base)[::2] if x.ndim == 1 and x.strides[0] != x.itemsize else cuda.to_device(x)
            for _, x, _ in self.arrays]

    def outputs(self, on_device):
        """What a launch has left in the outputs, by name."""
        pairs = zip(self.arrays, on_device, strict=True)
        return {name: array.copy_to_host() for (name, _, is_output), array in pairs if is_output}


def make(seed):
    """The kernel of a seed."""
    return Writer(seed).case()


class Writer(Statements):
    """Writes one kernel."""

    def __init__(self, seed):
        super().__init__(seed)
        k = self.below(100)
        self.kind = next(kind for bound, kind in KINDS if k < bound)
        self.portable = self.kind == "plain" and self.chance(0.6)
        self.risky = self.chance(0.12) and not self.portable
        k = self.below(100)
        self.integers, self.casts = (SIGNED, False) if k < 45 else (INTEGERS, k < 80)
        self.rng = np.random.default_rng(seed)
        self.inputs, self.outputs, self.extra = [], [], []  # (name, array, whether it is an output)
        self.constants = []  # what the kernel closes over: name and text
        self.body = 1  # the indentation of the kernel's statements
        self.launch = (3,), (64,)

    def case(self):
        """The kernel and its arguments."""
        self.draw_inputs()
        self.draw_outputs()
        self.draw_constants()
        device = [line for k in range(self.below(4)) for line in self.device_function(k, self.kind == "half")]
        if self.constants and self.constants[-1][0] == "K0":
            self.reads["K0"] = "F" if "." in self.constants[-1][1].replace("np.", "") else "I"
        self.variables, self.fixed = {}, set()
        self.draw_extra()
        self.draw_body()
        arrays = [*self.outputs, *self.extra, *self.inputs]
        names = ", ".join([*(name for name, _, _ in arrays), "n"])
        function = [*device, "@cuda.jit", f"def kernel({names}):", *self.lines]
        source = ["import math", "import numpy as np", "from numba import cuda", ""]
        if self.constants:
            source += [f"def factory({', '.join(name for name, _ in self.constants)}):"]
            source += ["    " + line if line else line for line in function]
            source += ["    return kernel", "", f"kernel = factory({', '.join(text for _, text in self.constants)})"]
        else:
            source += function
        return Case("\n".join(source) + "\n", arrays, self.launch)

    def draw_inputs(self):
        types = [
            self.pick(self.integers), self.pick(self.integers), self.pick(["float32", "float32", "float64"]),
            self.pick(["float32", "float64"]), self.pick([*self.integers, "bool"])]
        types += ["float16"] * 2 if self.kind == "half" else []
        for k, dtype in enumerate(types):
            name, x, family = f"a{k}", elements(dtype, self.rng), family_of(dtype)
            if self.chance(0.15):
                name, x = f"m{k}", x.reshape(12, 16)
                if self.chance(0.4):
                    x = np.asfortranarray(x)
            elif self.chance(0.1):
                x = np.repeat(x, 2)[::2]
            self.reads[name] = family
            if name.startswith("a"):
                self.slices[name] = family
            self.inputs.append((name, x, False))

    def draw_outputs(self):
        for k in range(3 + self.below(2)):
            family, dtype = self.pick("IIFF" + "HHH" * (self.kind == "half")), "float16"
            if family == "I":
                dtype = self.pick(["int64", "int64", "int64", "uint64", *INTEGERS])
            elif family == "F":
                dtype = self.pick(["float32", "float64", "float64"])
            self.outputs.append((f"o{k}", np.zeros(COUNT, dtype), True))
        if self.chance(0.3):
            self.outputs.append((f"o{len(self.outputs)}", np.zeros(COUNT, bool), True))

    def draw_constants(self):
        """What the kernel closes over."""
        unsigned = self.integers is INTEGERS
        if self.chance(0.6):
            scalars = [
                ("I", "np.int32(-7)"), ("I", "12"), ("I", "np.uint8(200)" if unsigned else "np.int8(-100)"),
                ("I", "-3"), ("F", "np.float32(0.3)"), ("F", "0.7"), ("F", "float('inf')"), ("I", "np.int64(2**40)"),
                ("F", "np.float64(-1e-3)"), ("I", "np.uint64(2**63)" if unsigned else "np.int16(999)"), ("I", "True")]
            for k in range(1 + self.below(3)):
                self.captured[f"C{k}"], text = self.pick(scalars)
                self.constants.append((f"C{k}", text))
            if self.chance(0.5):
                wide = "[1, 2**63, 3, 2**64 - 1], np.uint64" if unsigned else "[1, -2**63, 3, 2**63 - 1]"
                self.constants.append(("K0", self.pick([
                    "(3, -5, 7, 1000)", "(0.5, -1.25, 3.0, 1e10)", "np.array([1, -2, 3, 100], np.int8)",
                    "np.array([.1, -.2, 3, 1e-40], np.float32)", f"np.array({wide})"])))
        self.chance(0.5)  # not used

    def draw_extra(self):
        """The arrays of one kind of kernel."""
        if self.kind == "atomic":
            dtype = self.pick(["int32", "uint32", "int64", "uint64", "int32"])
            self.operation = self.pick([
                "add", "sub", "min", "max", "and_", "or_", "xor", "add", "fmax", "fmin", "inc", "dec"])
            if self.operation in ("inc", "dec"):
                dtype = "uint32"
            elif self.operation == "sub":
                dtype = self.pick(["int32", "uint32"])
            elif self.operation in ("fmax", "fmin"):
                dtype = self.pick(["float32", "float64"])
            self.extra = [("at", np.full(7, 5, dtype), True)]
        elif self.kind == "record":
            self.extra = [("rec", elements(RECORD, self.rng), False), ("orec", np.zeros(COUNT, RECORD), True)]
        elif self.kind == "complex":
            dtype = self.pick(["complex64", "complex128"])
            self.extra = [("z", elements(dtype, self.rng), False), ("oz", np.zeros(COUNT, dtype), True)]

    # The kernel's lines.

    def say(self, text, deeper=0):
        self.emit(self.body + deeper, text)

    def draw_body(self):
        self.draw_index()
        if self.chance(0.5) and self.kind != "stride":
            self.say("if i >= n:")
            self.say("return", 1)
        booleans = ["B"] if self.chance(0.5) else []
        self.declare(self.body, ["I", "I", "F", "F", *booleans, *("HH" if self.kind == "half" else "")])
        if self.chance(0.35) and self.kind != "stride":
            self.draw_local()
        self.block(self.body, 6, 2)
        if self.kind in ("plain", "half", "record") and self.chance(0.3):
            self.say(f"if {self.boolean(2)}:")
            for name, x, _ in self.outputs[:2]:
                self.say(f"{name}[i] = {self.expression(family_of(x.dtype.name), 2)}", 1)
            self.say("return", 1)
            self.block(self.body, 4, 2)
        own = {"shared": self.draw_shared, "warp": self.draw_warp, "atomic": self.draw_atomic,
               "record": self.draw_record, "complex": self.draw_complex}.get(self.kind)
        if own:
            own()
        for name, x, _ in self.outputs:
            family = family_of(x.dtype.name)
            text = self.expression(family, 2) if self.chance(0.4) else self.variable(family)
            text = text or self.expression(family, 1)
            if family == "F" and self.chance(0.1):
                text = self.integer(2)
            self.say(f"{name}[i] = {text}")

    def draw_index(self):
        if self.kind == "stride":
            self.say("for i in range(cuda.grid(1), n, cuda.gridsize(1)):")
            self.body, self.launch, self.loops = 2, ((2,), (64,)), 1
        elif self.kind in ("plain", "half") and not self.portable and self.chance(0.2):
            self.say("x, y = cuda.grid(2)")
            self.say("i = y * 24 + x")
            self.launch = (3, 2), (8, 4)
        elif self.portable:
            self.say("i = cuda.grid(1)")
        else:
            by_hand = "i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x"
            self.say(self.pick(["i = cuda.grid(1)", "i = cuda.grid(1)", by_hand]))

    def draw_local(self):
        family = self.pick("IF")
        dtype = self.pick(self.integers if family == "I" else ["float32", "float64"])
        self.say(f"loc0 = cuda.local.array(4, np.{dtype})")
        k = self.fresh("k")
        self.say(f"for {k} in range(4):")
        self.say(f"loc0[{k}] = {self.expression(family, 1)}", 1)
        self.reads["loc0"] = family

    def draw_shared(self):
        """Exchanges through shared memory, and perhaps a sum over the block."""
        family = self.pick("IF")
        dtype = self.pick(self.integers if family == "I" else ["float32", "float64"])
        self.say("t = cuda.threadIdx.x")
        self.say(f"sh = cuda.shared.array(64, np.{dtype})")
        for _ in range(1 + self.below(3)):
            self.say(f"sh[t] = {self.expression(family, 2)}")
            self.say("cuda.syncthreads()")
            goal, operator = self.one_of(family), self.pick(["=", "+=", "-="])
            at = self.pick(["63 - t", "(t * 5 + 3) % 64", "t ^ 1", "(t + 17) & 63", "-1 - t"])
            self.say(f"{goal} {operator} sh[{at}]")
            self.say("cuda.syncthreads()")
            if self.chance(0.3):
                goal = self.one_of("I")
                vote = self.pick(["syncthreads_count", "syncthreads_and", "syncthreads_or"])
                self.say(f"{goal} += cuda.{vote}({self.pick(['int', 'np.int32'])}({self.boolean(2)}))")
        if self.chance(0.5):
            self.say("step = 32")
            self.say(f"sh[t] = {self.expression(family, 1)}")
            self.say("cuda.syncthreads()")
            self.say("while step > 0:")
            self.say("if t < step:", 1)
            self.say(f"sh[t] {self.pick(['+=', '-='])} sh[t + step]", 2)
            self.say("cuda.syncthreads()", 1)
            self.say(self.pick(["step //= 2", "step >>= 1"]), 1)
            self.say(f"{self.one_of(family)} = sh[0]")
        self.block(self.body, 3, 2)

    def draw_warp(self):
        """Shuffles, votes and matches."""
        types = ["np.int32", "np.int64", "np.float32", "np.float64"]
        types += ["np.uint32", "np.uint64"] if not self.casts and self.integers is INTEGERS else []
        for _ in range(2 + self.below(3)):
            kind = self.pick(["shfl", "shfl", "up", "down", "xor", "ballot", "any", "all", "match", "eq"])
            whole, real, dtype = self.one_of("I"), self.one_of("F"), self.pick(types)
            value = f"{dtype}({self.expression('F' if 'float' in dtype else 'I', 2)})"
            goal = real if "float" in dtype else whole
            if kind == "shfl":
                lane = self.pick(["5", "(i * 7) & 31", "31 - (i & 31)"])
                self.say(f"{goal} = cuda.shfl_sync(0xFFFFFFFF, {value}, {lane})")
            elif kind in ("up", "down"):
                self.say(f"{goal} = cuda.shfl_{kind}_sync(0xFFFFFFFF, {value}, {1 + self.below(20)})")
            elif kind == "xor":
                self.say(f"{goal} = cuda.shfl_xor_sync(0xFFFFFFFF, {value}, {1 + self.below(31)})")
            elif kind == "ballot":
                self.say(f"{whole} = cuda.ballot_sync(0xFFFFFFFF, {self.boolean(2)})")
            elif kind == "match":
                dtype = self.pick(["np.int32", "np.int64", "np.float32"])
                self.say(f"{whole} = cuda.match_any_sync(0xFFFFFFFF, {dtype}({whole} & 3))")
            else:
                operator = self.pick(["=", "+="])
                self.say(f"{whole} {operator} int(cuda.{kind}_sync(0xFFFFFFFF, {self.boolean(2)}))")
        self.block(self.body, 3, 2)

    def draw_atomic(self):
        at, operation = self.pick(["i % 7", "i & 3", "(i * 3) % 7", "0"]), self.operation
        if operation in ("fmax", "fmin"):
            x = self.fresh("x")
            self.say(f"{x} = {self.float(2)}")
            self.say(f"if {x} == {x}:")
            self.say(f"cuda.atomic.{operation[1:]}(at, {at}, {x} + 0.0)", 1)
        elif operation in ("inc", "dec"):
            self.say(f"cuda.atomic.{operation}(at, {at}, {20 + self.below(50)})")
        else:
            sometimes = self.chance(0.3)
            if sometimes:
                self.say(f"if {self.boolean(1)}:")
            self.say(f"cuda.atomic.{operation}(at, {at}, {self.integer(2)})", sometimes)

    def draw_record(self):
        for name, family in list(self.variables.items())[:4]:
            if family not in "IF":
                continue
            field, operator = self.pick("yw" if family == "I" else "xz"), self.pick(["=", "+="])
            column = f"rec.{field}[i]" if self.chance(0.3) else f"rec[{COUNT - 1} - i].{field}"
            self.say(f"{name} {operator} {self.pick([f'rec[i].{field}', f'rec[i][{field!r}]', column])}")
        self.say("r = rec[i]")
        self.say(f"orec[i].x = {self.float(2)} + r.x")
        self.say(f"orec[i].y = {self.integer(2)} + r.v")
        self.say(f"orec[i]['z'] = {self.float(2)} * r.z")
        self.say(f"orec[i].w = {self.integer(2)}")
        self.say(f"orec[i].v = {self.integer(2)} - r.w")
        self.block(self.body, 3, 1)

    def draw_complex(self):
        self.say("c = z[i]")
        for _ in range(1 + self.below(3)):
            operator = self.pick(["+=", "-=", "*="])
            self.say(f"c {operator} " + self.pick([
                "z[(i + 5) % 192]", "c.conjugate()", "c", "2", "1.5", "complex(c.imag, c.real)",
                f"({self.integer(1)} & 15)", "np.float32(0.5)", "1j"]))
        self.say(f"{self.one_of('F')} = c.{self.pick(['real', 'imag'])}")
        self.say("oz[i] = c")
