"""``python -m elastrain_exec.enter --processes N train.py …``: the script in this rank of a job."""

from __future__ import annotations

import builtins
import functools
import os
import sys
import types
from pathlib import Path

import elastrain
from elastrain.elastic.job import Drained, Job
from elastrain_exec.data import counted
from elastrain_exec.execution import Execution
from elastrain_exec.live import Environ, Live, as_int
from elastrain_exec.refusals import Refused
from elastrain_exec.substitutes import TorchNames
from elastrain_exec.text import NAMES, Skip, install, read


def run(script: Path, arguments: list[str], processes: int) -> None:
    """Run ``script`` as ``__main__`` in the job that this process was started for."""
    path = str(script.resolve())
    with elastrain.join() as job:
        execution = _prepare(job, processes)
        home = os.path.dirname(path)  # noqa: PTH120 - a text, as sys.path has it
        install(home)
        sys.path[0], sys.argv = home, [str(script), *arguments]
        main = types.ModuleType("__main__")
        vars(main).update(NAMES, __file__=path, __builtins__=builtins)
        sys.modules["__main__"] = main
        try:
            exec(read(path), vars(main))  # noqa: S102 - the user's script
        except Skip:
            pass  # a joiner that comes behind the only pass
        except Drained:
            raise
        except Refused as refused:
            sys.stderr.write(f"elastrain exec: refused: {refused}\n")
            raise
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
        finally:
            execution.said.settle()


def _prepare(job: Job, processes: int) -> Execution:
    names = TorchNames()
    execution = Execution(job, processes, names)
    os.environ.update(RANK=str(int(execution.rank)), MASTER_ADDR="localhost", MASTER_PORT="0")
    os.environ.update(dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes)))
    os.environ.setdefault("LOCAL_RANK", "0")
    world = execution.world
    local = Live(functools.partial(int, os.environ["LOCAL_RANK"]), compared=execution.rank.read)
    Environ.live = {"RANK": execution.rank, "LOCAL_RANK": local, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.__class__ = Environ
    names.substitute(execution)
    said = execution.said
    said.hold_logs()
    NAMES.update(
        __exec_int__=as_int, __exec_enumerate__=counted(execution), __exec_skip__=Skip.ends_at,
        __exec_print__=said.print, __exec_open__=said.open,
    )  # fmt: skip
    return execution


def main() -> None:
    """``--processes N SCRIPT ARG…``"""
    processes, script, *arguments = sys.argv[2:]
    run(Path(script), arguments, int(processes))


if __name__ == "__main__":
    main()
