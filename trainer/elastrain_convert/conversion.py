"""Proposes the change of a training script for DDP, one GPU or torchrun to an elastic one.

Pure: text in, text and notes out. The script is parsed, never run. Rules look at the original tree and collect edits;
one pass applies them. What no rule understands stays as it is and becomes a note.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from elastrain_convert.body import Body
from elastrain_convert.data import Data
from elastrain_convert.entry import Entry, with_imports
from elastrain_convert.frameworks import Frameworks
from elastrain_convert.leftovers import Leftovers
from elastrain_convert.loops import Loops
from elastrain_convert.plan import Apply, Plan
from elastrain_convert.process import Process
from elastrain_convert.proof import Proof
from elastrain_convert.reduction import Reduction
from elastrain_convert.result import Change, Conversion, Note
from elastrain_convert.script import Script
from elastrain_convert.state import State
from elastrain_convert.written import faults

__all__ = ["Change", "Conversion", "Note", "Options", "convert"]


@dataclass(frozen=True)
class Options:
    """``processes``: for which batch sizes and learning rates were chosen. ``micro_batches``: bitwise numerics."""

    processes: int | None = None
    micro_batches: int | None = None


def convert(source: str, options: Options = Options()) -> Conversion:
    """The elastic form of a script. Raises ``ValueError`` if it is not Python, and names the line."""
    try:
        return _converted(source, options)
    except SyntaxError as e:
        raise ValueError(f"line {e.lineno}: not Python: {e.msg}") from None
    except (MemoryError, RecursionError):  # the first is what Python's parser raises
        raise ValueError("an expression or a block is nested too deeply") from None


def _converted(source: str, options: Options) -> Conversion:
    tree = ast.parse(source)
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    if any(func.attr == "join" and ast.unparse(func) == "elastrain.join" for func in calls):
        note = Note(1, "calls elastrain.join() already", "elastrain verify proves that it trains the same model")
        return Conversion(source, source, (), (note,))
    script = Script(source)
    plan = Plan(script)
    if (framework := Frameworks(script, plan, processes=options.processes)).applies():
        if plan.refused:
            return Conversion(source, source, (), tuple(sorted(plan.notes)))
        return _finished(script, plan, framework.imports, {}, options)
    process = Process(script, plan, processes=options.processes)
    process.prepare()
    loops = Loops(script, plan)
    data = Data(script, plan, process, loops, micro_batches=options.micro_batches)
    body = Body(script, plan, process, loops)
    body.apply()
    data.apply()
    Reduction(script, plan, loops, data).apply()
    loops.apply(process)
    state = State(script, plan, loops, data)
    state.apply()
    body.reports(state.tracked)
    process.gone(loops.dropped)
    process.apply()
    Leftovers(script, plan, process, loops).apply()
    if loops.found:
        Proof(script, plan, process, loops, data, state, body, bitwise=options.micro_batches is not None).apply()
    if not loops.found or not plan.edits or plan.refused:
        return Conversion(source, source, (), tuple(sorted(plan.notes)))
    plan.keep_blank_lines()
    return _finished(script, plan, (), process.spawned, options)


def _finished(
    script: Script, plan: Plan, imports: Sequence[str], spawned: dict[str, cst.Call], options: Options
) -> Conversion:
    Entry(script, plan, bitwise=options.micro_batches is not None, spawned=spawned).apply(_first(plan))
    changed = cst.ensure_type(script.module.visit(Apply(plan)), cst.Module)
    after = with_imports(script.module, changed, ["import elastrain", *imports])
    before, text, notes = script.module.code, after.code, tuple(sorted(plan.notes))
    if wrong := faults(before, text, script.job):
        return Conversion(before, before, (), tuple(sorted({*notes, *wrong})))
    return Conversion(before, text, tuple(sorted(plan.changes)), notes)


def _first(plan: Plan) -> cst.CSTNode | None:
    """The first statement of the module, that is no definition, in which something changes."""
    changed = {n for node in (*plan.edits, *plan.before) for n in (node, *plan.script.around(node))}
    for statement in plan.script.module.body:
        if statement in changed and not isinstance(statement, cst.FunctionDef | cst.ClassDef):
            return statement
    return None
