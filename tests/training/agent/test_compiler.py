"""torch's compiler front end is imported when somebody compiles: a stand-in until then, which nobody can tell."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from elastrain.agent.process import compiler

PARTS = {
    "__init__": """
        from whole.dynamo import config, trace_rules, utils
        def graph_break(msg=""): return "broken"
        def disable(fn=None, recursive=True, *, wrapping=True): return "disabled"
        def graph(): return "compiled"
    """,
    "config": "optimize_ddp = True",
    "trace_rules": "def clear_lru_cache(): return 'cleared'",
    "utils": """
        def get_optimize_ddp_mode(): return "the real one's"
        def counters(): return "counted"
    """,
}


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package whose ``dynamo`` is postponed."""
    package = tmp_path / "whole/dynamo"
    package.mkdir(parents=True)
    (tmp_path / "whole/__init__.py").touch()
    for name, text in PARTS.items():
        (package / f"{name}.py").write_text(dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compiler, "NAME", "whole.dynamo")
    import whole

    yield whole
    for name in [name for name in sys.modules if name.partition(".")[0] == "whole"]:
        del sys.modules[name]


def imported() -> bool:
    return "whole.dynamo.config" in sys.modules


def test_what_training_asks_is_answered_without_the_import(whole) -> None:
    wanted = compiler.postpone()
    import whole.dynamo

    def of_torch() -> None: ...

    assert whole.dynamo.graph_break() is None
    assert whole.dynamo.disable(of_torch, True, wrapping=False) is of_torch
    assert whole.dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"
    assert whole.dynamo.trace_rules.clear_lru_cache() is None
    assert not imported()
    assert not wanted()


def test_whoever_looks_through_all_modules_imports_nothing(whole) -> None:
    compiler.postpone()
    assert inspect.getmodule(inspect.currentframe()) is sys.modules[__name__]
    assert not hasattr(sys.modules["whole.dynamo"], "__warningregistry__")
    assert sys.modules["whole.dynamo"].__file__.endswith("dynamo/__init__.py")
    assert not imported()


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("import whole.dynamo; said = whole.dynamo.graph()", "compiled"),
        ("from whole.dynamo import graph; said = graph()", "compiled"),
        ("import whole.dynamo.utils; said = whole.dynamo.utils.counters()", "counted"),
        ("from whole.dynamo.utils import counters; said = counters()", "counted"),
        ("from whole.dynamo import utils; said = utils.counters()", "counted"),
        ("import whole.dynamo; said = whole.dynamo.disable(print)", "disabled"),
        ("import whole.dynamo; said = whole.dynamo.disable(recursive=False)", "disabled"),
        ("import whole.dynamo; said = 'graph' in dir(whole.dynamo)", True),
        ("import whole.dynamo; whole.dynamo.config.optimize_ddp = said = False", False),
        ("import whole.dynamo; whole.dynamo.own = said = 1", 1),
        ("import whole.dynamo; whole.dynamo.utils.own = said = 1", 1),
    ],
)
def test_the_real_one_takes_its_place_if_anything_else_is_wanted(whole, use: str, expected: object) -> None:
    wanted = compiler.postpone()
    said: dict[str, object] = {}
    exec(use, said)
    assert said["said"] == expected
    assert wanted()
    real = sys.modules["whole.dynamo"]
    assert type(real) is ModuleType
    assert whole.dynamo is real
    assert real.graph_break() == "broken"
    assert real.utils.get_optimize_ddp_mode() == "the real one's"


def test_what_was_set_reaches_the_real_one(whole) -> None:
    compiler.postpone()
    import whole.dynamo

    whole.dynamo.config.optimize_ddp = False
    whole.dynamo.own = 1
    real = sys.modules["whole.dynamo"]
    assert (real.config.optimize_ddp, real.own) == (False, 1)


def test_who_has_kept_the_stand_in_gets_the_real_ones_answers(whole) -> None:
    compiler.postpone()
    import whole.dynamo as kept

    utils = kept.utils
    assert kept.graph() == "compiled"
    assert kept.graph_break() == "broken"
    assert kept.disable(print, True, wrapping=False) == "disabled"
    assert utils.get_optimize_ddp_mode() == "the real one's"


def test_torch_asks_again_for_its_functions_when_the_real_one_is_there(whole) -> None:
    compiler.postpone()
    import whole.dynamo

    def of_torch() -> None: ...

    of_torch.__dict__["__dynamo_disable"] = whole.dynamo.disable(of_torch, True, wrapping=False)
    whole.dynamo.graph()
    assert "__dynamo_disable" not in of_torch.__dict__


def test_all_threads_get_the_same_one(whole) -> None:
    compiler.postpone()
    import whole.dynamo as stand_in

    together, got = threading.Barrier(8), []

    def want() -> None:
        together.wait()
        got.append(stand_in.config)

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [sys.modules["whole.dynamo.config"]] * 8


def test_nothing_is_postponed_that_is_there_already(whole) -> None:
    import whole.dynamo

    wanted = compiler.postpone()
    assert type(whole.dynamo) is ModuleType
    assert not wanted()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TORCH_HOME": "/cache", "PATH": "/bin"}, True),
        ({"TORCHDYNAMO_VERBOSE": "1"}, False),
        ({"TORCH_COMPILE_DISABLE": "1"}, False),
    ],
)
def test_it_is_imported_at_once_if_the_environment_speaks_of_it(environ: dict[str, str], expected: bool) -> None:
    assert compiler.may_wait(environ) is expected


TRAIN = """
    import sys, torch
    from elastrain.agent.process import compiler
    wanted = compiler.postpone()
    from elastrain.elastic.comm.gloo import solo_group

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=solo_group())
    def step():
        optimizer.zero_grad()
        wrapped(torch.ones(2, 8)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.load_state_dict(optimizer.state_dict())
    step()
"""


def run(program: str) -> str:
    command = [sys.executable, "-c", dedent(TRAIN) + dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_eager_training_never_imports_torchs() -> None:
    assert run("print(wanted(), 'sympy' in sys.modules)") == "False False"


def test_a_model_is_compiled_after_eager_steps() -> None:
    program = """
        graphs = []
        whole = torch.compile(model, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)
        print(torch.equal(whole(torch.ones(2, 8)), model(torch.ones(2, 8))))
        step()
        print(wanted(), len(graphs), type(sys.modules["torch._dynamo"]).__name__)
        disabled = torch.optim.Optimizer.zero_grad.__wrapped__.__dict__["__dynamo_disable"]
        print(disabled is not torch.optim.Optimizer.zero_grad.__wrapped__)
    """
    assert run(program).splitlines() == ["True", "True 1 module", "True"]
