"""The architecture as a failing check: permitted imports, and modules that processes must not load."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[3]


# import-linter sees neither the imports of a package's own __init__ nor those of its dependencies: hence this test.
HEAVY = {"torch", "kopf", "kubernetes"}
ABSENT = {
    # Before the zygote runs, and in it: each module is a delay, or one that the training script did not import.
    "elastrain.agent.process.zygote": {"torch", "grpc", "pydantic", "structlog", "subprocess"},
    "elastrain.agent.process.start": {"torch", "grpc", "pydantic", "structlog", "typer"},
    "elastrain": {*HEAVY, "numpy", "grpc"},
    "elastrain_resource.manifest": {*HEAVY, "numpy", "grpc"},
    "elastrain_resource.schema.crd": {*HEAVY, "numpy", "grpc"},
    "elastrain_operator.job.plan": {*HEAVY, "numpy"},
    # Beside a program of another framework, in each worker.
    "elastrain_launchers.restart": {*HEAVY, "numpy"},
    "elastrain_launchers.horovod.node": {*HEAVY, "numpy"},
    "elastrain_cli.main": HEAVY,
    "elastrain_operator": {"torch", "numpy"},
    "elastrain_operator.__main__": {"torch", "numpy"},
}
"""What no import of a module may load. One process imports them in this order, so what one may load comes late."""


def test_an_import_leaves_heavy_libraries_out() -> None:
    code = (
        "import json, sys; before = set(sys.modules)\n"
        "for name in sys.argv[1:]:\n"
        "    __import__(name)\n"
        "    print(json.dumps([name, sorted(set(sys.modules) - before)]))\n"
    )
    command = [sys.executable, "-c", code, *ABSENT]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    loaded = dict(json.loads(line) for line in result.stdout.splitlines())
    found = {name: absent & set(loaded[name]) for name, absent in ABSENT.items()}
    assert not any(found.values()), {name: sorted(modules) for name, modules in found.items() if modules}


def test_no_modules_import_each_other_in_a_circle_for_annotations_either() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
    graph = grimp.build_graph(*packages, cache_dir=None)
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()


def test_a_test_run_does_not_find_the_sources_as_the_standard_librarys_operator() -> None:
    code = "import operator; print(operator.__file__)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ROOT not in Path(result.stdout.strip()).parents
