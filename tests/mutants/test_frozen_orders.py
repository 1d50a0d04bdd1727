"""The frozen bits pin the order of every operation: each regrouping of a product or a sum in a rule changes them."""

import ast
import copy
import inspect
import types

import pytest
from laws.test_n03_order import ENTRIES, load

from refopt import cpu
from refopt.catalog import ROUTINES
from refopt.cpu import merged
from refopt.oracle.exact.cases import assert_same, runner

CHAINS = {ast.Mult: (ast.Mult, ast.Div), ast.Div: (ast.Mult, ast.Div), ast.Add: (ast.Add, ast.Sub)}
CHAINS[ast.Sub] = CHAINS[ast.Add]
# (a . b) : c becomes a . (b | c): with these operators inside, where exact arithmetic makes no difference.
INSIDE = {(ast.Mult, ast.Mult): ast.Mult, (ast.Mult, ast.Div): ast.Div, (ast.Div, ast.Div): ast.Mult,
          (ast.Add, ast.Add): ast.Add, (ast.Add, ast.Sub): ast.Sub, (ast.Sub, ast.Sub): ast.Add,
          (ast.Sub, ast.Add): ast.Sub}


class Regroup(ast.NodeTransformer):
    """Regroups the chain of that number, counted in the order in which a tree is gone through."""

    def __init__(self, number):
        self.number, self.count = number, 0

    def visit_BinOp(self, node):
        self.generic_visit(node)
        for regrouped in (self.from_left(node), self.from_right(node)):
            if regrouped is not None:
                self.count += 1
                if self.count - 1 == self.number:
                    self.text = f"{ast.unparse(node)} -> {ast.unparse(regrouped)}"
                    return regrouped
        return node

    def from_left(self, node):
        """(a . b) : c as a . (b | c), and (a / b) * c as a * (c / b)."""
        left = node.left
        if not isinstance(left, ast.BinOp):
            return None
        if isinstance(left.op, ast.Div) and isinstance(node.op, ast.Mult):
            return ast.BinOp(left.left, ast.Mult(), ast.BinOp(node.right, ast.Div(), left.right))
        inside = INSIDE.get((type(left.op), type(node.op)))
        return inside and ast.BinOp(left.left, left.op, ast.BinOp(left.right, inside(), node.right))

    def from_right(self, node):
        """A . (b | c) as (a . b) : c."""
        right = node.right
        if not isinstance(right, ast.BinOp):
            return None
        outside = {(outer, inner): op for (outer, op), inner in INSIDE.items()}.get((type(node.op), type(right.op)))
        return outside and ast.BinOp(ast.BinOp(node.left, node.op, right.left), outside(), right.right)


def regroupings(module):
    """Every regrouping of the code of a module: in words, and the module with it."""
    tree = ast.parse(inspect.getsource(module))
    number = 0
    while True:
        change = Regroup(number)
        other = ast.fix_missing_locations(change.visit(copy.deepcopy(tree)))
        if change.count <= number:
            return
        made = types.ModuleType(module.__name__)
        exec(compile(other, module.__file__, "exec"), made.__dict__)
        yield change.text, made
        number += 1


def changes_frozen_bits(function, routine):
    """Whether a merged function leaves other bits than the frozen ones in one of a routine's entries."""
    for key in ENTRIES:
        if key[0] == routine.name:
            case, expected = load(key)
            try:
                assert_same(expected, runner(function)(case), "frozen bits")
            except AssertionError:
                return True
    return False


@pytest.mark.clause("N3")
@pytest.mark.parametrize("routine", ROUTINES.values(), ids=lambda routine: routine.name)
def test_each_regrouping_of_a_rule_changes_frozen_bits(routine):
    """The order of operations, as written."""
    function = getattr(cpu, routine.merged_name)
    module = inspect.getmodule(function)
    assert not changes_frozen_bits(function, routine)
    unseen = [text for text, other in regroupings(module)
              if not changes_frozen_bits(getattr(other, routine.merged_name), routine)]
    assert not unseen


def test_each_regrouping_of_what_rules_share_changes_frozen_bits(monkeypatch):
    """The same for the product that scales a gradient."""
    listed = list(regroupings(merged))
    assert len(listed) >= 1
    for text, other in listed:
        monkeypatch.setattr(inspect.getmodule(cpu.merged_adam), "step", other.step)
        assert changes_frozen_bits(cpu.merged_adam, ROUTINES["adam"]), text
