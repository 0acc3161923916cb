"""The process group, ranks, world sizes and devices of a script: what a rank of elastrain has in their place."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from elastrain_convert.plan import Plan
from elastrain_convert.script import Script, code, matcher

DIST = "torch.distributed."
SET_UP = {f"{DIST}{n}" for n in ("init_process_group", "destroy_process_group", "barrier", "monitored_barrier")}
REMOVED = {*SET_UP, "torch.cuda.set_device", "torch.distributed.init_process_group"}
SEEDS = re.compile(r"(.*\.)?(manual_seed|manual_seed_all|seed|set_seed|seed_everything|seed_all)")
ENVIRONMENT = re.compile(
    r"(?:int\()?\s*os\.(?:environ\[|environ\.get\(|getenv\()\s*[\"'](RANK|LOCAL_RANK|WORLD_SIZE)[\"'].*"
)
MASTER = re.compile(r"os\.environ\[\s*[\"'](MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK)[\"']\s*\]")

is_spawn = matcher(r"torch\.multiprocessing\.(spawn|start_processes)")


class Process:
    """What in the script is a rank or a world size; the rules that replace it."""

    def __init__(self, script: Script, plan: Plan, *, processes: int | None) -> None:
        self.script, self.plan, self.processes = script, plan, processes
        self._kinds: dict[cst.CSTNode, str] = {}
        self.reads: list[tuple[cst.BaseExpression, str]] = []
        """Ranks and world sizes that are read from the job, where they stand in the script."""
        self.spawned = {code(c.args[0].value): c for c in script.calls if is_spawn(script.full(c)) and c.args}
        """Functions that ``mp.spawn`` calls: their first argument is the rank."""
        self.distributed = bool(self.spawned) or any(
            script.full(c).startswith(DIST) or script.full(c).endswith("DistributedDataParallel") for c in script.calls
        )

    def kind(self, node: cst.BaseExpression) -> str:
        """``rank``, ``local_rank`` or ``world``, or "" for anything else."""
        kinds = {self._known_kind(d) for d in self.script.resolve(node)}
        if isinstance(node, cst.Name) and self._is_spawned(node):
            return "rank"
        return kinds.pop() if len(kinds) == 1 else ""

    def _known_kind(self, node: cst.BaseExpression) -> str:
        if node not in self._kinds:
            self._kinds[node] = self._own_kind(node)
        return self._kinds[node]

    def _own_kind(self, node: cst.BaseExpression) -> str:
        if isinstance(node, cst.Name) and self._is_spawned(node):
            return "rank"
        full = self.script.full(node) if isinstance(node, cst.Call) else ""
        if full.startswith(DIST):
            return {"get_rank": "rank", "get_world_size": "world", "get_node_local_rank": "local_rank"}.get(
                full.removeprefix(DIST), ""
            )
        if full == "torch.cuda.device_count":
            return "world" if self.spawned else ""
        found = ENVIRONMENT.fullmatch(code(node))
        return {"RANK": "rank", "LOCAL_RANK": "local_rank", "WORLD_SIZE": "world"}[found[1]] if found else ""

    def _is_spawned(self, node: cst.Name) -> bool:
        function = self.script.scope(node) if node in self.script._parents else self.script.module
        return (
            isinstance(function, cst.FunctionDef)
            and function.name.value in self.spawned
            and self.script.parameters(function)[:1] == [node.value]
        )

    def is_of_rank(self, test: cst.BaseExpression) -> bool:
        """Whether a condition holds on some ranks only."""
        kinds = cst.Name | cst.Attribute | cst.Call | cst.Subscript
        parts = [n for n in self.script.walk(test) if isinstance(n, kinds)]
        return any(self.kind(n) in ("rank", "local_rank") for n in parts)

    # -- rules -------------------------------------------------------------------------------------------------------
    def apply(self) -> None:
        """All rules of this module."""
        self._set_up()
        self._helpers()
        for node in self.script.nodes:
            if isinstance(node, cst.BinaryOperation):
                self._seed(node)
            elif isinstance(node, cst.Call):
                self._device_of(node)
        self._values()

    def _set_up(self) -> None:
        for call in self.script.calls:
            statement = self.script.statement(call)
            alone = isinstance(self.script.parent(call), cst.Expr)
            if alone and self.script.full(call) in REMOVED and statement not in self.plan.removed:
                self.plan.remove(call, "the agent connects the ranks")
        for node in self.script.nodes:
            if isinstance(node, cst.AssignTarget) and MASTER.fullmatch(code(node.target)):
                self.plan.remove(node, "addresses belong to the generation")

    def _helpers(self) -> None:
        """Functions that only set the process group up, or end it."""
        for name, function in self.script.functions.items():
            body = [s for s in function.body.body if not self._is_text(s)]
            if body and all(s in self.plan.removed for s in body):
                for call in self.script.sites[name]:
                    if isinstance(self.script.parent(call), cst.Expr):
                        self.plan.remove(call, f"{name}() has nothing left to do")
                self.plan.remove(function, f"{name}() has nothing left to do")

    @staticmethod
    def _is_text(statement: cst.CSTNode) -> bool:
        return (
            isinstance(statement, cst.SimpleStatementLine)
            and isinstance(statement.body[0], cst.Expr)
            and isinstance(statement.body[0].value, cst.SimpleString)
        )

    def _seed(self, node: cst.BinaryOperation) -> None:
        """``manual_seed(seed + rank)``: ranks have their own random numbers by the position of their samples."""
        if isinstance(node.operator, cst.Add) and self.kind(node.right) in ("rank", "local_rank"):
            call = self.script.parent(self.script.parent(node))
            if isinstance(call, cst.Call) and SEEDS.fullmatch(code(call.func)):
                self.plan.edit(node, lambda u: u.left, "one seed for all ranks: random numbers follow the samples")
                for inner in self.script.walk(node.right):
                    self._done.add(inner)

    _done: set[cst.CSTNode]

    def _device_of(self, call: cst.Call) -> None:
        job = self.script.job
        if call in self._inside_removed():
            return
        if self.script.full(call) == "torch.device" and self._is_cuda(call):
            self._forget(call)
            self.plan.edit(call, lambda _: cst.parse_expression(f"{job}.device"), "the device of this rank")
        elif isinstance(call.func, cst.Attribute) and call.func.attr.value in ("cuda", "to"):
            attr, args = call.func.attr.value, call.args
            if (attr == "cuda" and len(args) <= 1) or (attr == "to" and args and self._is_index(args[0].value)):
                for arg in args[:1]:
                    self._forget(arg.value)

                def moved(updated: cst.Call) -> cst.Call:
                    func = updated.func.with_changes(attr=cst.Name("to"))
                    first = cst.Arg(cst.parse_expression(f"{job}.device"))
                    rest = [a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in updated.args[1:]]
                    return updated.with_changes(func=func, args=[first, *rest])

                self.plan.edit(call, moved, "the device of this rank")

    def _is_cuda(self, call: cst.Call) -> bool:
        parts = [n for n in self.script.walk(call)[1:] if isinstance(n, cst.Name | cst.Call | cst.Subscript)]
        return "cuda" in code(call) or any(self.kind(n) in ("rank", "local_rank") for n in parts)

    def _is_index(self, node: cst.BaseExpression) -> bool:
        if self.kind(node) in ("rank", "local_rank"):
            return True
        return isinstance(node, cst.FormattedString | cst.SimpleString) and code(node).strip("f\"'").startswith("cuda")

    def _forget(self, node: cst.CSTNode) -> None:
        self._done.update(self.script.walk(node))

    def _inside_removed(self) -> set[cst.CSTNode]:
        return self._gone

    _gone: set[cst.CSTNode]

    def _values(self) -> None:
        """Reads of ranks and world sizes. Assignments of them go: a value that is read once would be an old one."""
        variables: dict[tuple[cst.CSTNode, str], str] = {}
        for node in self.script.nodes:
            if isinstance(node, cst.Assign) and (kind := self.kind(node.value)):
                for target in node.targets:
                    scope = self.script.module if isinstance(target.target, cst.Attribute) else self.script.scope(node)
                    variables[scope, code(target.target)] = kind
                self._forget(node.value)
                self.plan.remove(node, f"{self.script.job}.{self._value(kind)} is read where it is used: it changes")
        for node in self.script.nodes:
            if node in self._done or not isinstance(node, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
                continue
            if isinstance(node, cst.Call) and not (self._own_kind(node)):
                continue
            if self.is_read(node) and (kind := self.kind(node)) and self._is_value(node, kind):
                self._forget(node)
                self._read(node, kind)

    def _is_value(self, node: cst.BaseExpression, kind: str) -> bool:
        """Not a parameter that has another meaning in other calls, and nothing in a statement that goes."""
        return node not in self._gone and self.script.statement(node) not in self.plan.removed

    def is_read(self, node: cst.CSTNode) -> bool:
        parent = self.script.parent(node)
        if isinstance(
            parent, cst.AssignTarget | cst.Param | cst.AnnAssign | cst.ImportAlias | cst.FunctionDef | cst.NameItem
        ):
            return False
        if isinstance(parent, cst.Arg) and parent.keyword is node:
            return False
        if isinstance(parent, cst.Element) and isinstance(
            self.script.parent(self.script.parent(parent)), cst.AssignTarget
        ):
            return False
        if isinstance(parent, cst.For | cst.AugAssign | cst.CompFor) and parent.target is node:
            return False
        if isinstance(parent, cst.Attribute) and parent.attr is node:
            return False
        return not any(isinstance(n, cst.Import | cst.ImportFrom) for n in self.script.around(node))

    @staticmethod
    def _value(kind: str) -> str:
        return "world_size" if kind == "world" else "rank"

    def _read(self, node: cst.BaseExpression, kind: str) -> None:
        job, parent = self.script.job, self.script.parent(node)
        if kind == "local_rank" and not isinstance(parent, cst.Comparison):
            self.plan.replace(node, f"{job}.device", "the device of this rank")
            return
        if kind == "world" and isinstance(parent, cst.BinaryOperation) and isinstance(parent.operator, cst.Multiply):
            if self.processes:
                self.plan.replace(node, str(self.processes), f"what was chosen for {self.processes} processes stays")
                return
            self.plan.note(
                node, "the world size changes while the job trains, and is 1 before its first step",
                "write the number for which the value was chosen, or give --processes N",
            )  # fmt: skip
            self.plan.replace(node, f"{job}.world_size")
            return
        if any(isinstance(n, cst.Slice) for n in self.script.around(node)):
            if not any(n.line == self.script.line(node) for n in self.plan.notes):
                self.plan.note(
                    node, "a share of the data by rank and world size, which change while the job trains",
                    f"give all data to {job}.dataloader(): the job cuts each batch",
                )  # fmt: skip
        elif kind == "world" and isinstance(parent, cst.BinaryOperation):
            self.plan.note(
                node, "a number of the world size, which changes while the job trains",
                f"compute with the whole: {job}.dataloader() takes the batch over all ranks",
            )  # fmt: skip
        self.reads.append((node, kind))
        self.plan.replace(node, f"{job}.{self._value(kind)}", f"{job}.{self._value(kind)}: of the present generation")

    def prepare(self) -> None:
        """Forget what the rules have seen."""
        self._done, self._gone = set(), set()

    def gone(self, dropped: Iterable[cst.CSTNode]) -> None:
        """Take in what other rules have removed, before :meth:`apply`."""
        self._gone.update(dropped)
        self._done.update(dropped)
        for statement in self.plan.removed:
            self._gone.update(self.script.walk(statement))

    def handled(self, node: cst.CSTNode) -> bool:
        """Whether a rule has taken it."""
        return node in self._done

    def claimed(self, node: cst.CSTNode) -> None:
        """Another rule replaces this expression."""
        self._forget(node)
