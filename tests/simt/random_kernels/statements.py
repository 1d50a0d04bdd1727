"""Random statements and device functions."""

from simt.random_kernels.expressions import Expressions


class Statements(Expressions):
    """Lines of a function. A statement is drawn with its indentation and how deeply statements may nest in it."""

    def __init__(self, seed):
        super().__init__(seed)
        self.lines, self.loops, self.names = [], 0, 0
        self.fixed = set()  # variables that no statement assigns: those of loops
        self.slices = {}  # by name, the family of each array that slices may be taken of
        self.casts = False  # whether what is assigned to an integer variable is converted to int64

    def emit(self, indent, text):
        self.lines.append("    " * indent + text)

    def fresh(self, stem="v"):
        self.names += 1
        return f"{stem}{self.names}"

    def target(self):
        """A variable to assign to, and its family."""
        name = self.pick([name for name in self.variables if name not in self.fixed])
        return name, self.variables[name]

    def one_of(self, family):
        """A variable of a family."""
        return self.pick([name for name, own in self.variables.items() if own == family])

    def stored(self, family, depth=3):
        """An expression to assign to a variable."""
        return self.cast(family, self.expression(family, depth))

    def cast(self, family, text):
        return f"np.int64({text})" if family == "I" and self.casts else text

    def declare(self, indent, families):
        for family in families:
            name = self.fresh()
            self.emit(indent, f"{name} = {self.stored(family, 1)}")
            self.variables[name] = family

    def block(self, indent, most, depth):
        before = len(self.lines)
        for _ in range(1 + self.below(most)):
            self.statement(indent, depth)
        if len(self.lines) == before:
            self.emit(indent, "pass")

    def statement(self, indent, depth):
        k = self.below(100)
        made = next((rule for bound, rule in STATEMENTS if k < bound and self._may(rule, depth)), Statements.assign)
        made(self, indent, depth)

    def _may(self, rule, depth):
        if rule is Statements.branch:
            return depth > 0
        if rule in (Statements.counted, Statements.conditional_loop):
            return depth > 0 and self.loops < 2
        if rule is Statements.slice:
            return self.slices
        return rule is not Statements.unpack or (self.functions and not self.in_function)

    def assign(self, indent, depth):
        name, family = self.target()
        self.emit(indent, f"{name} = {self.stored(family)}")

    def assign_or_convert(self, indent, depth):
        name, family = self.target()
        if family == "F" and self.chance(0.15):
            self.emit(indent, f"{name} = {self.integer(2)}")
        elif family == "I" and self.chance(0.06):
            self.emit(indent, f"{name} = {self.boolean(2)}")
        else:
            self.emit(indent, f"{name} = {self.stored(family)}")

    def augment(self, indent, depth):
        name, family = self.target()
        if family == "I":
            operator, right = self.pick(["+", "-", "*", "&", "|", "^", "//", "%", ">>", "<<"]), self.integer(2)
            if operator in ("//", "%"):
                right = f"({right} | 1)"
            if operator in (">>", "<<"):
                right = f"({right} & 31)"
            self.emit(indent, f"{name} {operator}= {right}")
        elif family == "F":
            operator, rule = self.pick(["+", "-", "*", "/"]), self.pick([self.float, self.float, self.integer])
            self.emit(indent, f"{name} {operator}= {rule(2)}")
        elif family == "H":
            self.emit(indent, f"{name} {self.pick(['+', '-', '*'])}= {self.half(2)}")
        else:
            self.emit(indent, f"{name} = {self.boolean(2)}")

    def branch(self, indent, depth):
        self.emit(indent, f"if {self.boolean(2) if self.chance(0.85) else self.integer(2)}:")
        self.block(indent + 1, 3, depth - 1)
        if self.chance(0.25):
            self.emit(indent, f"elif {self.boolean(2)}:")
            self.block(indent + 1, 2, depth - 1)
        if self.chance(0.5):
            self.emit(indent, "else:")
            self.block(indent + 1, 3, depth - 1)
        if self.loops and self.chance(0.25):
            self.emit(indent, f"if {self.boolean(1)}:")
            self.emit(indent + 1, self.pick(["break", "continue"]))

    def loop(self, name, indent, depth):
        """The body of a loop over a variable that it sets."""
        outside = dict(self.variables)
        self.loops += 1
        self.variables[name] = "I"
        self.fixed.add(name)
        self.block(indent + 1, 3, depth - 1)
        self.variables = outside
        self.loops -= 1

    def counted(self, indent, depth):
        name, few = self.fresh("k"), self.integer
        bounds = self.pick([
            f"{1 + self.below(5)}", f"{self.below(4)}, {4 + self.below(4)}",
            f"{3 + self.below(4)}, -{self.below(4) + 1}, -{1 + self.below(3)}", f"({few(1)} & 3)",
            f"({few(1)} & 7), 0, -2", f"-3, ({few(1)} & 3)", f"np.int32({few(1)} & 3)", f"np.uint8({few(1)} & 3), 6"])
        self.emit(indent, f"for {name} in range({bounds}):")
        self.loop(name, indent, depth)
        if self.chance(0.15):
            self.emit(indent, "else:")
            self.block(indent + 1, 1, 0)

    def conditional_loop(self, indent, depth):
        name = self.fresh("w")
        self.emit(indent, f"{name} = 0")
        both = self.chance(0.6)
        end = f"{name} < {2 + self.below(4)}"
        self.emit(indent, f"while {end} and {self.boolean(2)}:" if both else f"while {end}:")
        self.emit(indent + 1, f"{name} += 1")
        self.loop(name, indent, depth)

    def local(self, indent, depth):
        arrays = [name for name in self.reads if name.startswith("loc")]
        if not arrays:
            self.assign(indent, depth)
            return
        array = self.pick(arrays)
        at = self.pick(["i & 3", str(self.below(4)), "(i >> 2) & 3", "-2"])
        operator = self.pick(["=", "=", "+=", "-=", "*="])
        self.emit(indent, f"{array}[{at}] {operator} {self.expression(self.reads[array], 2)}")

    def swap(self, indent, depth):
        free = {}
        for name, family in self.variables.items():
            if name not in self.fixed:
                free.setdefault(family, []).append(name)
        family = self.pick(free)
        one, other = self.pick(free[family]), self.pick(free[family])
        if one != other:
            self.emit(indent, f"{one}, {other} = {other}, {self.stored(family, 2)}")

    def tuple(self, indent, depth):
        name = self.fresh("t")
        families = [self.pick("IF") for _ in range(2 + self.below(2))]
        if self.chance(0.4):
            families = [families[0]] * len(families)
        self.emit(indent, f"{name} = ({', '.join(self.expression(family, 2) for family in families)})")
        item = self.below(len(families))
        goal, family = self.target()
        if (family in "IF" and families[item] == family) or family == "F":
            self.emit(indent, f"{goal} = {self.cast(family, f'{name}[{item}]')}")
        if len(set(families)) == 1 and self.chance(0.5) and self.variables.get(goal) == "F":
            each = self.fresh("q")
            self.emit(indent, f"for {each} in {name}:")
            self.emit(indent + 1, f"{goal} += {each}")

    def slice(self, indent, depth):
        name, array = self.fresh("s"), self.pick(self.slices)
        family = self.slices[array]
        cut = self.pick([
            "i:", ":i + 1", "i // 2:i + 1", "::-1", "i::3", "-5:", ":-3", "100:20:-7", "1:i + 3:2", "-i - 1:"])
        self.emit(indent, f"{name} = {array}[{cut}]")
        goals = [goal for goal, own in self.variables.items() if own == family and goal not in self.fixed]
        if not goals:
            return
        goal, at = self.pick(goals), self.pick(["0", "-1", "0"])
        self.emit(indent, f"{goal} = {self.cast(family, f'{name}[{at}]')}")
        if self.chance(0.4):
            each = self.fresh("q")
            self.emit(indent, f"for {each} in {name}[:4]:")
            self.emit(indent + 1, f"{goal} {'^' if family == 'I' else '-'}= {each}")
        if family == "I":
            self.emit(indent, f"{goal} += {self.pick([f'len({name})', f'{name}.size', f'{name}.shape[0]'])}")

    def unpack(self, indent, depth):
        """A call of a device function that returns a pair."""
        pairs = [function for function in self.functions if function[3]]
        if not pairs:
            return
        name, _, parameters, _ = self.pick(pairs)
        one, other = self.fresh("r"), self.fresh("r")
        args = ", ".join(self.expression(family, 1) for family in parameters)
        self.emit(indent, f"{one}, {other} = {name}({args})")
        goals = [goal for goal, own in self.variables.items() if own == "F" and goal not in self.fixed]
        self.emit(indent, f"{self.pick(goals)} = {self.pick([one, other])}")

    def device_function(self, number, half):
        """A device function, whose lines are returned."""
        outside = self.lines, self.reads, self.slices, self.captured
        self.lines, self.reads, self.slices, self.fixed, self.in_function = [], {}, {}, set(), True
        parameters = [self.pick("IIFFB" + ("H" if half else "")) for _ in range(1 + self.below(3))]
        family, is_pair = self.pick("IF"), self.chance(0.25)
        self.variables = {f"p{k}": own for k, own in enumerate(parameters)}
        self.emit(0, "@cuda.jit(device=True)")
        self.emit(0, f"def f{number}({', '.join(self.variables)}):")
        self.emit(1, f"i = {self.pick(['3', '1', '2', 'np.int32(2)'])}")
        self.declare(1, [self.pick("IF") for _ in range(1 + self.below(2))] + ["F"])
        self.block(1, 4, 2)
        if self.chance(0.4):
            self.emit(1, f"if {self.boolean(2)}:")
            self.emit(2, f"return {self._returned(family, is_pair)}")
        self.emit(1, f"return {self._returned(family, is_pair)}")
        lines = [*self.lines, ""]
        self.lines, self.reads, self.slices, self.captured = outside
        self.in_function = False
        self.functions.append((f"f{number}", family, parameters, is_pair))
        return lines

    def _returned(self, family, is_pair):
        first = self.expression(family, 2)
        return f"({first}, {self.float(1)})" if is_pair else first


STATEMENTS = (  # each with the upper bound of the draws that lead to it
    (34, Statements.assign_or_convert), (46, Statements.augment), (60, Statements.branch), (70, Statements.counted),
    (75, Statements.conditional_loop), (80, Statements.local), (84, Statements.swap), (88, Statements.tuple),
    (91, Statements.slice), (93, Statements.unpack))
