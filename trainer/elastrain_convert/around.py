"""The proof behind exit 0, around the loops: processes, models, files, random numbers and code of other files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from elastrain_convert.body import Body
from elastrain_convert.data import OF_WRAPPER, is_wrapper
from elastrain_convert.effects import REPORTS
from elastrain_convert.known import LIBRARIES, RANDOM, WRITES
from elastrain_convert.loops import Loops
from elastrain_convert.plan import Plan
from elastrain_convert.process import SEEDS, Process
from elastrain_convert.script import Script, argument, code
from elastrain_convert.state import is_optimizer

LAUNCHED = re.compile(
    r"(\w+_)?rank|(\w+_)?world_size|is_(main|master|primary|distributed)\w*|(main|master)_process|(\w+_)?distributed|"
    r"ngpus\w*|n_?gpus?|num_gpus|(use_)?ddp|(\w+_)?process_index|gpu_id|world|gpu"
)
ENVIRONMENT = re.compile(
    r"[\"'](RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NODE_RANK|SLURM_\w+|OMPI_\w+|PMI_\w+)[\"']"
)
DROPPED = ("device_ids", "output_device", "dim", "check_reduction", "static_graph", "module")


class Around:
    """Looks at what the rules have left as it is, beside the loops."""

    def __init__(self, script: Script, plan: Plan, process: Process, loops: Loops, rules: Body) -> None:
        self.script, self.plan, self.process, self.loops, self.rules = script, plan, process, loops, rules
        self.job = script.job
        self._late = reached(script, loops, self._after_first_step())
        self._early = reached(script, loops, self._before_first_step())

    def apply(self) -> None:
        """All that is to be known."""
        self._processes()
        self._models()
        libraries(self.script, self.plan)
        self._files()
        self._unseeded()

    # -- before and behind the first step ----
    def _after_first_step(self) -> Iterator[cst.CSTNode]:
        for loop in self.loops.found:
            outer = loop.outermost
            yield from (loop.node.body, outer.body)
            siblings, place = self.script.siblings(outer)
            yield from siblings[place + 1 :]

    def _before_first_step(self) -> Iterator[cst.CSTNode]:
        for loop in self.loops.found:
            siblings, place = self.script.siblings(loop.outermost)
            yield from siblings[:place]
        yield from (
            s for s in self.script.module.body if not isinstance(s, cst.FunctionDef | cst.ClassDef | cst.If | cst.For)
        )

    def _is_early(self, node: cst.CSTNode) -> bool:
        """Whether it may run before the first step of a process."""
        scope = self.script.scope(node)
        for loop in self.loops.found:
            if scope is self.script.scope(loop.outermost):
                return self.script.line(node) < self.script.line(loop.outermost)
        return scope in self._early or scope not in self._late

    # -- processes ----
    def _processes(self) -> None:
        job = self.job
        for node, kind in self.process.reads:
            if self._reports(node):
                continue
            if kind == "world":
                self.plan.note(
                    node,
                    "the world size changes while the job trains, and is 1 before its first step",
                    f"what holds for several processes holds for the job: write it without the question ({job}.wrap, "
                    f"{job}.dataloader)",
                )
            elif kind == "rank" and not self._is_asked(node):
                self.plan.note(
                    node,
                    f"a value of {job}.rank is kept, and it changes: before the first step it is 0 in every process",
                    f"ask where it is used: if {job}.rank == 0",
                )
        for node in self.script.nodes:
            if isinstance(node, cst.If) and node not in self.plan.removed and self.process.is_of_rank(node.test):
                self._alone(node)
            elif isinstance(node, cst.Name | cst.Attribute) and LAUNCHED.fullmatch(code(node).rpartition(".")[2]):
                self._launched(node)
            elif (
                isinstance(node, cst.Subscript | cst.Call)
                and "environ" in code(node)[:40]
                and ENVIRONMENT.search(code(node))
            ):
                self._environment(node)

    def _is_asked(self, node: cst.CSTNode) -> bool:
        """In a condition, which asks now."""
        inner = node
        for outer in self.script.around(node):
            if isinstance(outer, cst.If | cst.While | cst.IfExp) and outer.test is inner:
                return True
            if isinstance(outer, cst.Arg) and outer.keyword is not None and outer.keyword.value == "disable":
                return True
            if not isinstance(outer, cst.Comparison | cst.BooleanOperation | cst.UnaryOperation | cst.ComparisonTarget):
                return False
            inner = outer
        return False

    def _reports(self, node: cst.CSTNode) -> bool:
        statement = self.script.statement(node)
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
            return False
        small = statement.body[0]
        return (
            isinstance(small, cst.Expr)
            and isinstance(small.value, cst.Call)
            and code(small.value.func).rpartition(".")[2] in REPORTS
        )

    def _alone(self, node: cst.If) -> None:
        if self._is_early(node) and not all(self._reports(s) for s in node.body.body):
            self.plan.note(
                node,
                f"{self.job}.rank is 0 in every process before its first step",
                "do it before the job, or in a way that several processes may do at the same time",
            )
        if any(isinstance(n, cst.For) and n in self.loops.evaluations for n in self.script.walk(node.body)) or any(
            isinstance(loop, cst.For)
            for f in reached(self.script, self.loops, [node.body])
            for loop in self.loops.evaluations
            if self.script.within(loop, f)
        ):
            self.plan.note(
                node,
                "rank 0 evaluates alone, and the others wait for it",
                f"evaluate on all ranks: {self.job}.evaluate()",
            )

    def _launched(self, node: cst.Name | cst.Attribute) -> None:
        if (
            not self.process.is_read(node)
            or self._is_gone(node)
            or self.script.full(node).startswith(("torch.", "numpy."))
        ):
            return
        if isinstance(self.script.parent(node), cst.Attribute) or node in self.process._done:
            return
        parent = self.script.parent(node)
        if isinstance(parent, cst.Call) and parent.func is node:
            return
        if isinstance(parent, cst.Element) or self._reports(node):
            return
        self.plan.note(
            node,
            f"{code(node)} is of the processes of a launcher, and no rule has replaced it",
            f"{self.job}.rank, {self.job}.world_size and {self.job}.device, read where they are used",
        )

    def _environment(self, node: cst.CSTNode) -> None:
        if (
            self._is_gone(node)
            or self.process.handled(node)
            or any(n in self.plan.edits for n in self.script.around(node))
        ):
            return
        self.plan.note(
            node,
            "a variable of a launcher, which the agent's ranks do not have, or which is an old value",
            f"{self.job}.rank …",
        )

    def _is_gone(self, node: cst.CSTNode) -> bool:
        return any(n in self.plan.removed or n in self.process._gone for n in (node, *self.script.around(node))) or (
            node in self.plan.edits
            or any(
                n in self.plan.edits and isinstance(n, cst.Call) and is_wrapper(self.script.full(n))
                for n in self.script.around(node)
            )
        )

    # -- models ----
    def _models(self) -> None:
        script, job = self.script, self.job
        wrapped = [c for c in script.calls if is_wrapper(script.full(c)) and c.args]
        inner = {m for c in wrapped for m in script.resolve(c.args[0].value)} | set(wrapped)
        if wrapped:
            self._wrappers(inner)
        for call in script.calls:
            full = script.full(call)
            if is_wrapper(full):
                others = [
                    a for a in call.args[1:] if a.keyword is not None and a.keyword.value not in (*OF_WRAPPER, *DROPPED)
                ]
                for arg in others:
                    self.plan.note(
                        arg, f"{code(arg.keyword)} is an option of DDP that the job does not take", "leave it out"
                    )
            elif re.fullmatch(r".*\.register_(\w+_)?hook", code(call.func)):
                self.plan.note(
                    call,
                    "a hook runs also in a body that does not count, and on each rank's part",
                    f"call what it does in the body, under `if {job}.committed:`",
                )
            elif full == "torch.cuda.device_count" and not self._reports(call) and not self._is_gone(call):
                self.plan.note(
                    call, "the devices of a machine are not the ranks of the job", "write the number that was meant"
                )
            elif full == "builtins.int" and re.search(r"environ|getenv", code(call)) and not self._is_gone(call):
                if not self.process.handled(call):
                    self.plan.note(call, "a number of the environment", "an argument of the script, or a constant")
            elif (
                full == "torch.compile"
                and call.args
                and any(
                    isinstance(m, cst.Call) and is_wrapper(script.full(m)) for m in script.resolve(call.args[0].value)
                )
            ):
                self.plan.note(call, "a wrapper is compiled", f"compile the model: {job}.wrap(torch.compile(net))")
            elif is_optimizer(full) and not self._of_modules(call):
                self.plan.note(
                    call,
                    "what this optimizer trains is not seen to be the parameters of a module that is wrapped",
                    f"give it the parameters() of modules, and {job}.wrap each of them",
                )

    def _wrappers(self, inner: set[cst.BaseExpression]) -> None:
        """What trains is wrapped, and the wrapper is called."""
        script, job = self.script, self.job
        for call in [c for loop in self.loops.found for c in script.walk(loop.node.body)]:
            if isinstance(call, cst.Call) and self._is_bare(call.func, inner):
                self.plan.note(call, "the model is called, and not its wrapper", f"call what {job}.wrap() returns")
        for call in script.calls:
            if is_optimizer(script.full(call)) and not self._of_wrapped(call, inner):
                self.plan.note(
                    call, "this optimizer trains a module that is not seen to be wrapped", f"{job}.wrap() each module"
                )

    def _is_bare(self, func: cst.BaseExpression, inner: set[cst.BaseExpression]) -> bool:
        if isinstance(func, cst.Attribute):
            return str(func.attr.value) == "module"
        made = (
            set(self.script.resolve(func)) | set(self.script.definitions(func)) if isinstance(func, cst.Name) else set()
        )
        found = made & inner
        return bool(found) and not any(isinstance(m, cst.Call) and is_wrapper(self.script.full(m)) for m in found)

    def _of_wrapped(self, call: cst.Call, inner: set[cst.BaseExpression]) -> bool:
        """Whether the roots of ``x.parameters()`` are modules that are wrapped."""
        for made in self.script.resolve(call.args[0].value) if call.args else ():
            for node in self.script.walk(made):
                if not (isinstance(node, cst.Call) and code(node.func).endswith("parameters")):
                    continue
                root = node.func
                while isinstance(root, cst.Attribute) and code(root.value) != "self":
                    root = root.value
                if not {*self.script.resolve(root), *self.script.definitions(root)} & inner:
                    return False
        return True

    def _of_modules(self, call: cst.Call) -> bool:
        if not call.args:
            return False
        texts = [code(m) for m in self.script.resolve(call.args[0].value)]
        return bool(texts) and all("parameters()" in t for t in texts)

    # -- files, random numbers ----
    def _files(self) -> None:
        """Files that several processes write, and that one that joins begins anew."""
        for call in self.script.calls:
            if (
                not self._writes(call)
                or self._is_gone(call)
                or any(n in self.rules.gated for n in self.script.around(call))
            ):
                continue
            alone = any(
                (isinstance(n, cst.If) and self.process.is_of_rank(n.test)) or n in self.rules.alone
                for n in self.script.around(call)
            )
            if self._is_early(call):
                self.plan.note(
                    call,
                    "a process that joins later does this again, and begins the file, the folder or the run anew",
                    f"do it in {self.job}.on_commit, or behind the loops, on rank 0",
                )
            elif not alone and not self.process.distributed:
                self.plan.note(call, "each rank does this at the same time", f"put it under `if {self.job}.rank == 0:`")

    def _writes(self, call: cst.Call) -> bool:
        full, name = self.script.full(call), code(call.func).rpartition(".")[2]
        if full == "os.makedirs" or (name == "mkdir" and isinstance(call.func, cst.Attribute)):
            return "exist_ok=True" not in code(call).replace(" ", "")
        if full == "builtins.open" or name == "open":
            mode = argument(call, "mode", 1 if full == "builtins.open" else 0)
            return mode is not None and any(c in code(mode) for c in "wax+")
        if full == "logging.basicConfig":
            return argument(call, "filename") is not None or argument(call, "handlers") is not None
        if full == "torch.save" or name in (
            "save_pretrained",
            "save_image",
            "savefig",
            "to_csv",
            "write_text",
            "write_bytes",
        ):
            return True
        return WRITES(full)

    def _unseeded(self) -> None:
        """Random numbers before the loops, which must be the same in all processes."""
        if any(SEEDS.fullmatch(code(c.func)) for c in self.script.calls):
            return
        for call in self.script.calls:
            full = self.script.full(call)
            drawn = RANDOM(full) or full == "torch.utils.data.random_split"
            if drawn and argument(call, "generator") is None and self._is_early(call) and not self._of_sample(call):
                self.plan.note(
                    call,
                    "nothing seeds these random numbers: each process draws its own",
                    "torch.manual_seed(…) at the beginning, with one value for all processes",
                )

    def _of_sample(self, node: cst.CSTNode) -> bool:
        scope = self.script.scope(node)
        return isinstance(scope, cst.FunctionDef) and scope.name.value in (
            "__getitem__",
            "__getitems__",
            "__call__",
            "forward",
        )


def reached(script: Script, loops: Loops, blocks: Iterable[cst.CSTNode]) -> set[cst.CSTNode]:
    """Functions that these blocks call, by their names, also by others."""
    found: set[cst.CSTNode] = set()
    mains = {script.scope(loop.outermost) for loop in loops.found}
    queue = list(blocks)
    while queue:
        for node in script.walk(queue.pop()):
            if isinstance(node, cst.Call):
                function = script.functions.get(code(node.func).rpartition(".")[2])
                if function is not None and function not in found and function not in mains:
                    found.add(function)
                    queue.append(function.body)
    return found


def libraries(script: Script, plan: Plan) -> None:
    """Code of other files and unknown packages."""
    used = {n.value for n in script.nodes if isinstance(n, cst.Name) and not _imports(script, n)}
    for node in script.nodes:
        if not isinstance(node, cst.Import | cst.ImportFrom):
            continue
        if isinstance(node, cst.ImportFrom):
            module = code(node.module) if node.module is not None else ""
            star = isinstance(node.names, cst.ImportStar)
            names = (
                []
                if isinstance(node.names, cst.ImportStar)
                else [a.evaluated_alias or a.evaluated_name for a in node.names]
            )
            unknown = bool(node.relative) or module.partition(".")[0] not in LIBRARIES
            wanted = star or any(n in used for n in names)
            modules = [f"{'.' * len(node.relative)}{module}"] if wanted and (unknown or star) else []
        else:
            modules = [
                a.evaluated_name
                for a in node.names
                if a.evaluated_name.partition(".")[0] not in LIBRARIES
                and (a.evaluated_alias or a.evaluated_name.partition(".")[0]) in used
            ]
        for module in modules:
            plan.note(
                node,
                f"what {module} does with several processes, and in one that joins later, cannot be seen in this file",
                "look there for files, loggers, process groups, counters, samplers and loops that train; "
                "then put what it does into this file, or write the calls by hand",
            )


def _imports(script: Script, node: cst.CSTNode) -> bool:
    return any(isinstance(n, cst.Import | cst.ImportFrom) for n in script.around(node))
