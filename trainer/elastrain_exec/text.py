"""The script's text: what is read from it, and the few names that get another meaning in it.

No object can take the place of ``int``, ``enumerate``, ``print`` and ``open``: calls of them get another name. The body
of each ``for`` continues if a pass over the data is one of an epoch that is over.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from elastrain_exec import flow
from elastrain_exec.refusals import Scripts, refuse

RENAMED = ("int", "enumerate", "print", "open")
MANIFOLD = frozenset({"zip", "islice", "cycle", "chain", "count", "map", "reversed", "list", "iter", "batched"})
"""Around a loader they count from where this process has begun, not from where the job is."""
OF_RANKS = ("rank", "main", "master")
"""In the tests of branches that only some ranks take."""
TRACKERS = {
    "aim": "Run", "clearml": "Task", "comet_ml": "Experiment", "mlflow": "start_run", "neptune": "init_run",
    "tensorboardX": "SummaryWriter", "torch.utils.tensorboard": "SummaryWriter", "wandb": "init",
}  # fmt: skip
"""What begins a run of a tracker: it would belong to a process that was rank 0 at set-up, and that may be lost."""
OTHERS_LOOPS = {
    "accelerate": "has a loop of its own: elastrain.integrations.accelerate",
    "apex": "scales losses in its own way",
    "colossalai": "shards models itself",
    "deepspeed": "shards models itself",
    "fairscale": "shards models itself",
    "horovod": "has sums of its own: elastrain runs it by its launcher",
    "ignite": "has a loop of its own",
    "lightning": "has a loop of its own: elastrain.integrations.lightning",
    "megatron": "shards models itself",
    "pytorch_lightning": "has a loop of its own: elastrain.integrations.lightning",
    "torch.distributed.fsdp": "shards the model",
    "torch.distributed.pipelining": "shards the model",
    "torch.distributed.rpc": "calls processes by their numbers",
    "torch.distributed.tensor": "shards the model",
    "torchmetrics": "has states that are no part of its state_dict()",
    "trl": "has a loop of its own: elastrain.integrations.huggingface",
}
"""Packages that ``exec`` does not know: their import is refused, with what they do."""


class Skip(BaseException):
    """The pass that begins is one of an epoch that is over: the rest of that epoch does not run in a joiner."""

    to: ClassVar[tuple[str, int] | None] = None
    """File and line of the loop over epochs."""

    @classmethod
    def ends_at(cls, file: str, line: int) -> type[Skip] | tuple[()]:
        """What the body of a loop catches: this, if it is the one over epochs."""
        return cls if cls.to == (file, line) else ()


@dataclass
class Facts:
    """Of all files of the script."""

    carried: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    """By file and function (``<module>``: its own statements): names that loops carry, with a line."""
    attributes: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Those that code outside of ``__init__`` sets: a file and line."""
    loops: dict[str, list[ast.For | ast.While]] = field(default_factory=dict)
    """By file."""
    branches: dict[str, list[ast.If]] = field(default_factory=dict)
    """By file: those whose test names a rank."""
    modules: set[str] = field(default_factory=lambda: {"__main__", "argparse", "types"})
    """Of the script, and of namespaces of options."""

    def around(self, file: str, line: int) -> Iterator[ast.For | ast.While]:
        """The loops around a line of ``file``, the innermost first."""
        found = [loop for loop in self.loops.get(file, ()) if loop.lineno <= line <= (loop.end_lineno or line)]
        return iter(sorted(found, key=lambda loop: -loop.lineno))

    def asks_for_rank(self, file: str, line: int) -> bool:
        """Whether a line is in a branch that only some ranks take."""
        return any(b.lineno <= line <= (b.end_lineno or line) for b in self.branches.get(file, ()))


FACTS = Facts()
NAMES: dict[str, Any] = {}
"""What the renamed calls are, given to each module of the script."""


class _Rewrite(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> ast.For:
        """Not of ``while``: what counts its turns may stand behind the pass."""
        self.generic_visit(node)
        which = ast.Call(
            ast.Name("__exec_skip__", ast.Load()), [ast.Name("__file__", ast.Load()), ast.Constant(node.lineno)], []
        )
        skipped = ast.ExceptHandler(which, None, [ast.Continue()])
        node.body = [ast.copy_location(ast.Try(node.body, [skipped], [], []), node.body[0])]
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in RENAMED:
            node.func = ast.copy_location(ast.Name(f"__exec_{node.func.id}__", ast.Load()), node.func)
        return node


def read(path: str) -> types.CodeType:
    """Compile a file of the script, and note what it says. Raises :class:`Refused` for what ``exec`` does not know."""
    tree = ast.parse(Path(path).read_bytes(), path)
    _hold_trackers(_check_imports(tree, path))
    shared = flow.reads_of_module(tree)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            name = getattr(function, "name", "<module>")
            found = flow.carried_by(function, shared if isinstance(function, ast.Module) else set())
            FACTS.carried.setdefault((path, name), {}).update(found.names)
    FACTS.carried[path, "<module>"].update(flow.changes_of_module(tree))
    FACTS.loops[path] = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    ifs = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    FACTS.branches[path] = [node for node in ifs if any(word in ast.unparse(node.test) for word in OF_RANKS)]
    _note_attributes(tree, path)
    return compile(ast.fix_missing_locations(_Rewrite().visit(tree)), path, "exec", dont_inherit=True)


def check(path: str) -> None:
    """Read a file without running it. Raises :class:`Refused` and ``SyntaxError``."""
    _check_imports(ast.parse(Path(path).read_bytes(), path), path)


def _check_imports(tree: ast.Module, path: str) -> set[str]:
    """Returns all names that are imported, with their packages."""
    found: set[str] = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
            known = next((p for n in range(1, len(parts) + 1) if (p := ".".join(parts[:n])) in OTHERS_LOOPS), None)
            if known and isinstance(node, ast.stmt):
                refuse(f"import of {known}, which {OTHERS_LOOPS[known]}", at=(path, node.lineno))
    return found


def _hold_trackers(imported: set[str]) -> None:
    for name in imported & TRACKERS.keys():
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        reason = f"{name}.{TRACKERS[name]}(): another process may become rank 0"
        setattr(module, TRACKERS[name], functools.partial(_refuse_tracker, reason))


def _refuse_tracker(reason: str, *_: object, **__: object) -> None:
    refuse(reason, "leave the tracker out, or make it under 'if job.committed:' in a converted script")


def _note_attributes(tree: ast.Module, path: str) -> None:
    """Attributes that a function other than ``__init__`` sets or changes in place."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name == "__init__":
            continue
        for node in ast.walk(function):
            changed = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and flow.mutates(node.func.attr):
                changed = node.func.value
            elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
                changed = node
            while isinstance(changed, ast.Attribute | ast.Subscript):
                if isinstance(changed, ast.Attribute):
                    FACTS.attributes.setdefault(changed.attr, (path, changed.lineno))
                changed = changed.value


class Loader(importlib.machinery.SourceFileLoader):
    """Of modules beside the script."""

    def get_code(self, fullname: str) -> types.CodeType:
        return read(str(self.get_filename(fullname)))

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(NAMES)
        FACTS.modules.add(module.__name__)
        super().exec_module(module)


def install(home: str) -> None:
    """Modules in ``home`` are read as the script is."""
    skipped = {"site-packages", ".venv", "venv", "node_modules"}
    Scripts.files = {str(path) for path in Path(home).rglob("*.py") if not skipped & set(path.parts)}
    finder = importlib.machinery.FileFinder.path_hook((Loader, [".py"]))

    def hook(folder: str) -> Any:
        if not str(Path(folder).resolve()).startswith(home):
            raise ImportError(folder)
        return finder(folder)

    sys.path_hooks.insert(0, hook)
    for folder in [known for known in sys.path_importer_cache if known.startswith(home)]:
        del sys.path_importer_cache[folder]
