"""Sums over the ranks outside of training loops, and evaluations that each rank makes as a whole."""

from __future__ import annotations

import libcst as cst

from elastrain_convert.data import Data
from elastrain_convert.loops import Loops
from elastrain_convert.plan import Plan, expression
from elastrain_convert.process import DIST
from elastrain_convert.script import Script, argument, code

OPERATIONS = {"SUM": "sum", "AVG": "mean", "MIN": "min", "MAX": "max"}


class Reduction:
    """The rules for ``dist.all_reduce`` and its relatives."""

    def __init__(self, script: Script, plan: Plan, loops: Loops, data: Data) -> None:
        self.script, self.plan, self.loops, self.data = script, plan, loops, data

    def apply(self) -> None:
        """All rules of this module."""
        for call in self.script.calls:
            if self.script.full(call) == f"{DIST}all_reduce" and self.script.statement(call) not in self.plan.removed:
                self._all_reduce(call)

    def _evaluates(self, function: cst.CSTNode) -> bool:
        """Whether a function goes over data of an evaluation that each rank now has as a whole."""
        return any(
            self.script.within(loop, function) and any(c in self.data.whole for c in self.script.resolve(loop.iter))
            for loop in self.loops.evaluations
        )

    def _all_reduce(self, call: cst.Call) -> None:
        script, plan, job = self.script, self.plan, self.script.job
        if any(script.within(call, loop.node) for loop in self.loops.found):
            return  # noted with the loop
        function = script.scope(call)
        if not isinstance(function, cst.FunctionDef):
            self._summed(call)
            return
        sites = script.sites[function.name.value]
        evaluating = [s for s in sites if self._evaluates(script.scope(s))]
        if self._evaluates(function) or (sites and len(evaluating) == len(sites)):
            plan.remove(call, "each rank has evaluated everything: nothing is summed")
            return
        self._summed(call)
        for site in evaluating:
            statement = script.statement(site)
            if isinstance(script.parent(site), cst.Expr):
                plan.remove(statement, "each rank has evaluated everything: nothing is summed")
            else:
                plan.note(
                    site,
                    "each rank has evaluated everything, and this sums it over the ranks",
                    f"use the value, or {job}.evaluate()",
                )

    def _summed(self, call: cst.Call) -> None:
        """In place in torch; a result here."""
        job = self.script.job
        value = argument(call, "tensor", 0)
        op = argument(call, "op", 1)
        word = OPERATIONS.get(code(op).rpartition(".")[2], "") if op is not None else "sum"
        if value is None or not word or not isinstance(self.script.parent(call), cst.Expr):
            self.plan.note(
                call, "this sum over the ranks has a form that is not converted", f"value = {job}.all_reduce(value)"
            )
            return
        name, option = code(value), "" if word == "sum" else f', "{word}"'
        made = cst.Assign([cst.AssignTarget(expression(name))], expression(f"{job}.all_reduce({name}{option})"))
        self.data.process.claimed(call)
        self.plan.edit(self.script.parent(call), lambda _: made, "returns the result; called between loops")
