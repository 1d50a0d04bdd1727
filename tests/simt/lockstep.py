"""Another model of a warp, which keeps the lanes in step with a mask, and random programs to run on it."""

import ast
import itertools
import operator
from collections import defaultdict

LANES, SIZE = 32, 64
OPERATORS = {
    ast.Add: operator.add, ast.Mult: operator.mul, ast.Mod: operator.mod, ast.Lt: operator.lt, ast.Eq: operator.eq}


class Writer:
    """Writes a random kernel: loads in branches, in loops with break and continue, and in a function."""

    def __init__(self, random):
        self.random, self.names = random, itertools.count()

    def source(self):
        lines = ["def helper(x, t, a):", *self.block(1, 2, False), "    if a % 3 == 0:", "        return a + 1"]
        lines += [*self.block(1, 1, False), "    return a", "def kernel(x, t, a):", *self.block(1, 3, True)]
        return "\n".join(lines) + "\n"

    def number(self):
        c = self.random.randrange(1, 8)
        return self.random.choice([f"(a + {c})", f"(t + {c})", f"(t * {c} + a)", f"(a * {c})", str(c)])

    def block(self, depth, room, calls, loop=False):
        lines = []
        for _ in range(self.random.randrange(1, 4)):
            lines += self.statement(depth, room, calls, loop)
        return lines

    def statement(self, depth, room, calls, loop):
        pad, inner = "    " * depth, "    " * (depth + 1)
        kind = self.random.choice(["load", "load", "set", "call", *(["if", "if", "for", "while"] if room else [])])
        if kind == "load":
            return [f"{pad}a = (a + x[{self.number()} % {SIZE}]) % 50"]
        if kind == "call" and calls:
            return [f"{pad}a = helper(x, t, a) % 50"]
        if kind == "if":
            lines = [f"{pad}if {self.number()} % {self.random.randrange(2, 4)} == 0:"]
            lines += self.block(depth + 1, room - 1, calls, loop)
            if loop and self.random.random() < 0.5:
                lines.append(f"{inner}{self.random.choice(['break', 'continue'])}")
            if self.random.random() < 0.5:
                lines += [f"{pad}else:", *self.block(depth + 1, room - 1, calls, loop)]
            return lines
        if kind == "for":
            head = f"{pad}for i{next(self.names)} in range({self.number()} % 4):"
            return [head, *self.block(depth + 1, room - 1, calls, True)]
        if kind == "while":
            name = f"w{next(self.names)}"
            bounds = [self.number(), f"(t + x[{self.number()} % {SIZE}])", "(a + helper(x, t, 3))"]
            most = self.random.choice(bounds if calls else bounds[:2])
            head = [f"{pad}{name} = 0", f"{pad}while {name} < {most} % 4:", f"{inner}{name} += 1"]
            return [*head, *self.block(depth + 1, room - 1, calls, True)]
        return [f"{pad}a = {self.number()} % 50"]


class Line:
    def __init__(self, lanes):
        self.lanes, self.following = len(lanes), set()


class Warp:
    """Runs a program. Afterwards `lines` has each execution of a line, `loads` each of a load: the indices, by lane."""

    def __init__(self, source, x):
        self.functions = {node.name: node for node in ast.parse(source).body}
        self.x, self.lines, self.loads = x, defaultdict(list), defaultdict(list)

    def run(self):
        variables = {lane: {"t": lane, "a": lane % 5} for lane in range(LANES)}
        Call(self, "kernel", variables).run()
        return variables


class Call:
    """A call of a function by some lanes."""

    def __init__(self, warp, name, variables):
        self.warp, self.body, self.variables = warp, warp.functions[name].body, variables
        self.results, self.last = {}, {}
        self.broken, self.continued = [], []

    def run(self):
        self.block(self.body, set(self.variables))
        for line in self.last.values():
            line.following.add(0)
        return self.results

    def enter(self, node, lanes):
        """These lanes execute a line."""
        line = Line(lanes)
        self.warp.lines[node.lineno].append(line)
        for lane in lanes:
            if lane in self.last:
                self.last[lane].following.add(node.lineno)
            self.last[lane] = line

    def block(self, body, lanes):
        """The lanes that reach its end."""
        for node in body:
            if lanes:
                lanes = self.statement(node, lanes)
        return lanes

    def statement(self, node, lanes):
        self.enter(node, lanes)
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                for lane, each in self.value(node.value, lanes).items():
                    self.variables[lane][name] = each
                return lanes
            case ast.AugAssign(target=ast.Name(id=name)):
                for lane, each in self.value(node.value, lanes).items():
                    self.variables[lane][name] += each
                return lanes
            case ast.If():
                chosen = {lane for lane, each in self.value(node.test, lanes).items() if each}
                return self.block(node.body, chosen) | self.block(node.orelse, lanes - chosen)
            case ast.For(target=ast.Name(id=name), iter=ast.Call(args=[count])):
                counts, numbers = self.value(count, lanes), itertools.count()

                def more(active):
                    k = next(numbers)
                    going = {lane for lane in active if k < counts[lane]}
                    for lane in going:
                        self.variables[lane][name] = k
                    return going

                return self.loop(node, lanes, more)
            case ast.While():

                def true(active):
                    return {lane for lane, each in self.value(node.test, active).items() if each}

                return self.loop(node, lanes, true)
            case ast.Break():
                self.broken[-1] |= lanes
            case ast.Continue():
                self.continued[-1] |= lanes
            case ast.Return():
                self.results |= self.value(node.value, lanes)
        return set()

    def loop(self, node, lanes, more):
        self.broken.append(set())
        left = set()
        while lanes:
            going = more(lanes)
            left |= lanes - going
            self.continued.append(set())
            lanes = self.block(node.body, going) | self.continued[-1]
            self.continued.pop()
            if lanes:
                self.enter(node, lanes)
        return left | self.broken.pop()

    def value(self, node, lanes):
        match node:
            case ast.Constant():
                return dict.fromkeys(lanes, node.value)
            case ast.Name():
                return {lane: self.variables[lane][node.id] for lane in lanes}
            case ast.Subscript():
                indices = self.value(node.slice, lanes)
                self.warp.loads[node.lineno].append(list(indices.values()))
                return {lane: self.warp.x[index] for lane, index in indices.items()}
            case ast.Call():
                values = self.value(node.args[2], lanes)
                own = {lane: {"t": self.variables[lane]["t"], "a": values[lane]} for lane in lanes}
                return Call(self.warp, "helper", own).run()
            case ast.BinOp(left=left, right=right, op=sign) | ast.Compare(left=left, comparators=[right], ops=[sign]):
                one, other = self.value(left, lanes), self.value(right, lanes)
                return {lane: OPERATORS[type(sign)](one[lane], other[lane]) for lane in lanes}
        raise NotImplementedError(ast.dump(node))
