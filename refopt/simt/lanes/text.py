"""Generates the form of a function for lanes as Python source.

A branch or a loop body becomes a function of lanes and variables, which `flow` calls with the lanes that take it.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from ..base.structure import RESULT, Structure
from ..base.variables import live, live_before, stores
from ..machine import atomics
from .expressions import NOTHING, Expressions, listed
from .forms import Form, Program, is_fence
from .typed import LaneTyper, Refused


class Writer(Expressions):
    """Generates one function."""

    def __init__(self, program: Program, form: Form, typer: LaneTyper, tree: ast.FunctionDef) -> None:
        super().__init__(program, form, typer, tree)
        args, function = tree.args, typer.function
        body = Structure().function(tree.body)
        positional = [a.arg for a in (*args.posonlyargs, *args.args)]
        others = [args.vararg.arg] if args.vararg else []
        named = [a.arg for a in args.kwonlyargs]
        self.defined = {*positional, *others, *named}
        self.locals = self.defined | stores(body)
        defaults = dict(zip(positional[::-1], (function.__defaults__ or ())[::-1], strict=False))
        defaults |= function.__kwdefaults__ or {}
        written = {name: f"v_{name}={self._default(defaults[name])}" if name in defaults else f"v_{name}"
                   for name in (*positional, *named)}
        star = [f"*v_{others[0]}"] if others else ["*"] if named else []
        self.block(body, {RESULT} & self.locals)
        end = f"return v_{RESULT}" if RESULT in self.defined else "return None"
        parameters = [*(written[name] for name in positional), *star, *(written[name] for name in named)]
        program.function(form.name, parameters, [*self.lines, end])

    def _default(self, value: Any) -> str:
        return self.program.constant(np.float64(value) if type(value) is float else value)

    def block(self, body: list[ast.stmt], after: set[str]) -> None:
        """Generate statements; ``after`` are the variables that are read after them."""
        lives = [after]
        for node in reversed(body[1:]):
            lives.append(live(node, lives[-1]))
        for node, then in zip(body, reversed(lives), strict=False):
            getattr(self, f"_do_{type(node).__name__}", self.refuse)(node, then & self.locals)

    def _do_Pass(self, node: ast.stmt, after: set[str]) -> None:
        pass

    _do_Delete = _do_Pass

    def _do_Raise(self, node: ast.stmt, after: set[str]) -> None:
        self.effect("failed(L)")

    def _do_Assert(self, node: ast.Assert, after: set[str]) -> None:
        self._do_If(ast.If(node.test, [], [ast.Raise()]), after)

    def _do_Expr(self, node: ast.Expr, after: set[str]) -> None:
        text = self.call(node.value, False) if isinstance(node.value, ast.Call) else self.expr(node.value)
        self.held(text)

    def _do_Assign(self, node: ast.Assign, after: set[str]) -> None:
        text = self.expr(node.value)
        if len(node.targets) > 1:
            text = self.held(text)
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                self.effect(f"put(L, {self.expr(target.value)}, {self.expr(target.slice)}, {text})")
            else:
                self.lines.append(f"{self._target(target)} = {text}")
                self.defined |= stores([target])

    def _target(self, node: ast.expr) -> str:
        if isinstance(node, ast.Tuple | ast.List):
            return listed(map(self._target, node.elts))
        return f"v_{node.id}" if isinstance(node, ast.Name) else self.refuse(node)

    def _do_If(self, node: ast.If, after: set[str]) -> None:
        test = self.held(self.expr(node.test))
        changed = (stores(node.body) | stores(node.orelse)) & after
        inside = self.locals & (live_before(node.body, changed) | live_before(node.orelse, changed))
        ins, outs = self.variables(inside), [f"v_{name}" for name in sorted(changed)]
        yes, no = (self._way(way, changed, ins, outs) for way in (node.body, node.orelse))
        self._assign(outs, f"branch(L, {test}, {yes}, {no}, {listed(ins)})")
        self.defined |= changed

    def _way(self, body: list[ast.stmt], changed: set[str], ins: list[str], outs: list[str]) -> str:
        def inside() -> None:
            self.block(body, changed)
            self.variables(changed)

        return self.inner(inside, ins, outs)

    def _assign(self, names: list[str], text: str) -> None:
        self.lines.append(f"{listed(names)} = {text}" if names else text)

    def _do_While(self, node: Any, after: set[str]) -> None:
        """A loop; `structure` has named the variable that says whether a lane continues."""
        go, counted = {node.go} - {""}, isinstance(node, ast.For)
        targets = stores([node.target]) if counted else set()
        if not counted:
            self._spin(node.source)
        items = [self.held(self.expr(node.iter))] if counted else []
        before = live(node, after) & self.locals
        carried = (stores(node.body) | targets) & (before | after) - go
        given = self.variables(before - carried - go)
        changed = self.variables(go) + self.variables(carried)

        def body() -> None:
            if counted:
                self.lines.append(f"{self._target(node.target)} = item")
                self.defined.update(targets)
            self.block(node.body, before | carried | go)

        part = self.inner(body, [*(["item"] if counted else []), *given, *changed], changed)
        how = [*items, part, *([str(bool(go))] if counted else []), listed(given), listed(changed)]
        self._assign(changed, f"{'each_of' if counted else 'loop'}({', '.join(['L', *how])})")

    _do_For = _do_While

    def _spin(self, node: ast.While) -> None:
        """Refuse a loop whose end may depend on other threads.

        That is a loop with a fence in it, or with atomics in its test or, if it is endless, anywhere.
        """
        endless = isinstance(node.test, ast.Constant)
        for where in (node.test, *node.body):
            for part in ast.walk(where):
                function = self.static(part.func) if isinstance(part, ast.Call) else NOTHING
                atomic = getattr(function, "waits", False) or getattr(function, "__module__", "") == atomics.__name__
                if is_fence(function) or (atomic and (endless or where is node.test)):
                    raise Refused("it waits for other threads")
