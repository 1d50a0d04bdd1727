"""Random expressions, by families: I integers, F floats of 32 and 64 bits, H floats of 16, B booleans."""

import random

from simt.random_kernels.inputs import COUNT, INTEGERS

COMPARISONS = ["<", ">", "==", "!=", "<=", ">="]
SUMS = ["+", "-", "*", "+", "-"]
CONSTANTS = [
    "0", "1", "2", "3", "-1", "-5", "7", "255", "256", "65535", "2147483647", "2147483648", "-2147483648", "4294967295",
    "9223372036854775807"]
FLOATS = [
    "0.0", "-0.0", "1.0", "0.1", "-2.5", "1e300", "1e-310", "3.4e38", "np.float32(0.1)", "np.float32(1e-40)", "0.5",
    "1e20", "16777217.0", "np.float64(1e-5)"]


class Draws:
    """Random decisions, by a seed."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def below(self, count):
        """A number from 0 to count - 1."""
        return int(self._random.random() * count)

    def pick(self, choices):
        choices = list(choices)
        return choices[self.below(len(choices))]

    def chance(self, share):
        return self._random.random() < share


class Expressions(Draws):
    """Expressions of the variables and arrays that there are. ``depth`` bounds how deeply they nest."""

    def __init__(self, seed):
        super().__init__(seed)
        self.variables, self.reads = {}, {}  # by name, the family of each variable, and of each array to read
        self.captured = {}  # by name, the family of each scalar that the kernel closes over
        self.functions = []  # device functions: name, family, families of the parameters, whether it returns a pair
        self.in_function = False
        self.integers = INTEGERS  # the types of integers that may occur
        self.portable = self.risky = False  # only what njit has too; also what may be beyond a type's range

    def expression(self, family, depth=3):
        return {"I": self.integer, "F": self.float, "B": self.boolean, "H": self.half}[family](depth)

    def _by(self, table, depth):
        """One of a table's productions: each with the upper bound of the draws that lead to it."""
        k = self.below(table[-1][0])
        return next(made for bound, rule in table if k < bound and (made := rule(self, depth)) is not None)

    # What expressions are made of.

    def variable(self, family):
        names = [name for name, own in self.variables.items() if own == family]
        return self.pick(names) if names else None

    def element(self, family):
        names = [name for name, own in self.reads.items() if own == family]
        if not names:
            return None
        name = self.pick(names)
        if name.startswith("m"):
            return f"{name}[{self.index()} // 16, {self.below(16)}]"
        if name.startswith("loc"):
            return f"{name}[{self.pick(['i & 3', str(self.below(4)), '-1', '(i >> 1) & 3'])}]"
        if name.startswith("K"):
            return f"{name}[{self.pick(['i & 3', str(self.below(4)), '(i >> 2) & 3'])}]"
        return f"{name}[{self.index()}]"

    def index(self):
        return self.pick([
            "i", "i", "i", f"(i + {1 + self.below(50)}) % {COUNT}", f"(i * {self.pick([3, 5, 7])}) % {COUNT}",
            f"{self.below(COUNT)}", f"-{1 + self.below(COUNT)}", f"({COUNT - 1} - i)"])

    def constant(self, family, default):
        """A captured scalar."""
        return self.pick([name for name, own in self.captured.items() if own == family] or [default])

    def integer_leaf(self):
        k, leaf = self.below(10), None
        if k < 4:
            leaf = self.variable("I")
        elif k < 7:
            leaf = self.element("I")
        elif k < 8:
            leaf = self.pick(["i"] if self.in_function else ["i", "n"])
        elif k < 9 and self.captured:
            leaf = self.constant("I", "i")
        if leaf is None:
            largest = ["18446744073709551615"] if self.integers is INTEGERS else []
            leaf = self.pick([*CONSTANTS, *largest, str(self.below(1000)), str(-self.below(1000)), "12345678901"])
        return leaf

    def float_leaf(self):
        k, leaf = self.below(10), None
        if k < 4:
            leaf = self.variable("F")
        elif k < 8:
            leaf = self.element("F")
        elif k < 9 and self.captured:
            leaf = self.constant("F", "1.5")
        return self.pick(FLOATS) if leaf is None else leaf

    def call(self, family, depth):
        """A call of a device function."""
        fitting = [function for function in self.functions if function[1] == family]
        if not fitting:
            return self.integer_leaf() if family == "I" else self.float_leaf()
        name, _, parameters, is_pair = self.pick(fitting)
        args = ", ".join(self.expression(own, depth - 2) for own in parameters)
        return f"{name}({args}){f'[{self.below(2)}]' if is_pair else ''}"

    # A family each.

    def integer(self, depth=3):
        return self.integer_leaf() if depth <= 0 or self.chance(0.12) else self._by(INTEGER, depth)

    def float(self, depth=3):
        return self.float_leaf() if depth <= 0 or self.chance(0.12) else self._by(FLOAT, depth)

    def boolean(self, depth=2):
        if depth <= 0 or self.chance(0.1):
            leaf = self.pick([self.variable("B"), self.element("B"), None])
            return leaf or f"({self.integer_leaf()} {self.pick(COMPARISONS)} {self.integer_leaf()})"
        return self._by(BOOLEAN, depth)

    def half(self, depth=3):
        if depth <= 0 or self.chance(0.15):
            leaf = self.pick([self.variable("H"), self.element("H"), None])
            return leaf or f"np.float16({self.pick(['0.1', '2.5', '-0.0', '65504.0', '6e-8', '1.0'])})"
        return self._by(HALF, depth)

    def int_below(self, depth):
        """An integer that is one or two levels simpler."""
        return self.integer(depth - 1 - self.below(2))

    def float_below(self, depth):
        return self.float(depth - 1 - self.below(2))

    def number_below(self, depth):
        """A float, or an integer, which it is converted from."""
        rule, less = self.pick([(self.float_below, 0), (self.float_below, 0), (self.integer, 1)])
        return rule(depth - less)

    def clamped(self, depth):
        return f"min(max({self.float(depth - 1)}, -100.5), 100.5)"


# Productions, each with the upper bound of the draws that lead to it. One that returns None leaves it to the next.


def _chosen(g, choices):
    return g.pick(choices) if len(choices) > 1 else choices[0]


def _binary(rule, *operators):
    """An operator between operands by a rule."""
    return lambda g, d: f"({rule(g, d)} {_chosen(g, operators)} {rule(g, d)})"


def _around(rule, *texts):
    """One of several texts, with an operand in it."""
    return lambda g, d: _chosen(g, texts).format(rule(g, d))


def _only(condition, production):
    """A production under a condition."""
    return lambda g, d: production(g, d) if condition(g) else None


def _down(rule):
    """A rule for operands that are one level simpler."""
    return lambda g, d: rule(g, d - 1)


def _either(*rules):
    """An operand by one of several rules."""
    return lambda g, d: g.pick(rules)(g, d - 1)


def _gpu(g):
    return not g.portable


def _risky(g):
    return g.risky


_integer, _float, _half = Expressions.int_below, Expressions.float_below, _down(Expressions.half)
_less, _number = _down(Expressions.integer), Expressions.number_below
_truth, _real = _down(Expressions.boolean), _down(Expressions.float)


def _shift(g, d):
    by = g.pick([f"({_integer(g, d)} & {g.pick([7, 15, 31, 63])})", str(g.below(32)), str(g.below(64))])
    return f"({_integer(g, d)} {g.pick(['<<', '>>'])} {by})"


def _divided(g, d):
    left, operator = _integer(g, d), g.pick(["//", "%"])
    return f"({left} {operator} {g.pick([f'({_integer(g, d)} | 1)', str(1 + g.below(30)), str(-1 - g.below(30))])})"


def _least(g, d):
    count = 2 + g.chance(0.2)
    args = ", ".join(_integer(g, d) for _ in range(count))
    return f"{g.pick(['min', 'max'])}({args})"


def _power(g, d):
    return g.pick([
        f"({_integer(g, d)} ** {g.below(5)})", f"({_integer(g, d)} ** ({_integer(g, d)} & 7))",
        f"pow({_integer(g, d)}, {g.below(5)})"])


def _bits(g, d):
    names = ["int32", "int64", "int32", "uint32"] + (["uint64", "int8", "uint16"] if g.risky else [])
    kind = g.pick(names)
    if g.integers is not INTEGERS:
        kind = g.pick(["int32", "int64"])
    more = ["ffs"] if g.risky or "32" in kind else []
    return f"cuda.{g.pick(['popc', 'clz', 'brev', *more])}(np.{kind}({_integer(g, d)}))"


def _truncated(g, d):
    x = g.clamped(d)
    return g.pick([f"int({x})", f"np.int32({x})", f"np.int64({x})", f"np.int8({x})", f"np.int16({x})"])


def _selected(g, d):
    if _gpu(g) and g.chance(0.5):
        return f"cuda.selp({_truth(g, d)}, np.int64({_integer(g, d)}), np.int64({_integer(g, d)}))"
    return f"({_integer(g, d)} + {_integer(g, d)})"


INTEGER = (
    (28, _binary(_integer, *SUMS)), (40, _binary(_integer, "&", "|", "^")), (47, _shift), (54, _divided),
    (57, _around(_integer, "(-{})", "(~{})", "(+{})", "(-{})", "(~{})")), (60, _around(_integer, "abs({})")),
    (65, _least),
    (74, lambda g, d: f"np.{g.pick(g.integers)}({_integer(g, d)})"),
    (77, lambda g, d: f"({_integer(g, d)} if {_truth(g, d)} else {_integer(g, d)})"), (80, _power),
    (83, lambda g, d: f"int({_truth(g, d)})" if g.chance(0.5) else f"({_truth(g, d)} + {_integer(g, d)})"),
    (86, _binary(_integer, "and", "or")), (89, _only(_gpu, _bits)),
    (91, lambda g, d: f"divmod({_integer(g, d)}, ({_integer(g, d)} | 1))[{g.below(2)}]"),
    (93, _only(_risky, _around(_real, *(f"np.{kind}({{}})" for kind in [
        "int32", "int64", "uint32", "uint64", "int16", "int8", "uint8"])))),
    (95, _truncated), (96, _only(_gpu, lambda g, d: f"round({g.clamped(d)})")),
    (98, lambda g, d: g.call("I", d) if g.functions else None), (100, _selected))


def _extreme(g, d):
    if g.portable:
        return f"({_float(g, d)} - {_float(g, d)})"
    name, operands = g.pick(["min", "max"]), [_float(g, d), _number(g, d)]
    operands += [_float(g, d)] if g.chance(0.2) else []
    return f"{name}({', '.join(operands)})"


def _rounded(g, d):
    if g.portable:
        return f"({_float(g, d)} * {_float(g, d)})"
    return f"math.{g.pick(['floor', 'ceil', 'trunc'])}({_float(g, d)})"


def _signed(g, d):
    g.float_leaf()  # not used
    return f"math.copysign({_float(g, d)}, {g.pick(['1.0', '-0.0', f'(float({g.integer_leaf()}) - 0.5)'])})"


def _fused(g, d):
    kind = g.pick(["float32", "float64"])
    return f"cuda.fma({', '.join(f'np.{kind}({_float(g, d)})' for _ in range(3))})"


FLOAT = ((34, _binary(_float, *SUMS)), (42, _binary(_float, "/")),
         (45, lambda g, d: f"({_less(g, d)} / {g.pick([_less(g, d), _float(g, d)])})"),
         (50, lambda g, d: f"({_less(g, d)} {g.pick(['+', '-', '*'])} {_float(g, d)})"),
         (58, _around(_number, "np.float32({})", "np.float64({})", "np.float32({})")),
         (62, _around(_float, "(-{})", "(+{})", "(-{})")),
         (65, lambda g, d: g.pick([f"abs({_float(g, d)})", f"math.fabs({_float(g, d)})"])), (69, _extreme),
         (74, _around(_number, "math.sqrt({})")), (79, _rounded), (82, _signed),
         (85, lambda g, d: f"({_float(g, d)} if {_truth(g, d)} else {_number(g, d)})"),
         (87, lambda g, d: f"({_float(g, d)} ** {g.pick([2, 2, 3, 4, 1, 0])})"), (89, _only(_gpu, _fused)),
         (91, _only(_gpu, lambda g, d: f"math.fmod({_float(g, d)}, {_float(g, d)})")),
         (92, _only(_risky, _binary(_float, "%", "//"))),
         (93, lambda g, d: f"math.ldexp({_float(g, d)}, np.int32({g.integer(1)} & 15))"),
         (94, lambda g, d: f"math.modf({_float(g, d)})[{g.below(2)}]"), (95, _around(_float, "math.frexp({})[0]")),
         (98, lambda g, d: g.call("F", d) if g.functions else None), (99, _binary(_float, "and", "or")),
         (100, _around(_either(Expressions.float, Expressions.integer), "float({})")))


def _chained(g, d):
    """Two comparisons in one."""
    operand = _either(Expressions.integer, Expressions.float)
    return f"({_less(g, d)} {g.pick(COMPARISONS)} {operand(g, d)} {g.pick(COMPARISONS)} {_less(g, d)})"


BOOLEAN = ((4, _binary(_less, *COMPARISONS)), (7, _binary(_real, *COMPARISONS)), (8, _chained),
           (9, _binary(_truth, "and", "or", "&", "|", "^", "==", "!=")),
           (10, _around(_either(Expressions.boolean, Expressions.integer), "(not {})")),
           (11, _around(_real, "math.isnan({})", "math.isinf({})", "math.isfinite({})")),
           (12, _around(_either(Expressions.integer, Expressions.float), "bool({})")))


def _by_function(names, count):
    """A call of a function of cuda.fp16."""
    return lambda g, d: f"cuda.fp16.{_chosen(g, names)}({', '.join(_half(g, d) for _ in range(count))})"


def _half_if(g, d):
    first, left = _half(g, d), _half(g, d)
    return f"({first} if {left} {g.pick(['<', '>', '==', '>=', '!='])} {_half(g, d)} else {_half(g, d)})"


HALF = ((5, _binary(_half, "+", "-", "*")), (6, _binary(_half, "/")), (7, _around(_half, "(-{})")),
        (8, _around(_half, "abs({})")), (9, _by_function(["hfma"], 3)),
        (11, _by_function(["hmax", "hmin", "hadd", "hsub", "hmul"], 2)),
        (12, _around(_either(Expressions.float, Expressions.integer), "np.float16({})")),
        (13, _by_function(["hfloor", "hceil", "htrunc", "hrint", "habs", "hneg", "hsqrt"], 1)), (14, _half_if))
