"""Shell completion: candidates for the current word. An error reduces the candidates and prints nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

import typer

from elastrain.api import names

SECONDS = 2.0
"""Seconds to wait for the cluster, while the user waits for the candidates."""


class Shell(StrEnum):
    """Shells with completion scripts."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_ZSH = """\
#compdef {program}

_{name}_completion() {{
  eval $(env _TYPER_COMPLETE_ARGS="${{words[1,$CURRENT]}}" {variable}=complete_zsh {program})
}}

if [[ "${{funcstack[1]}}" == _{program} ]]; then
  _{name}_completion "$@"  # zsh has just loaded this file from $fpath because Tab was pressed
else
  compdef _{name}_completion {program}
fi
"""
"""A wrapper for typer's script. typer's own only defines the function when loaded: the first Tab of each shell offers
nothing."""


def script(shell: Shell, program: str = "elastrain") -> str:
    """The completion script of ``program`` for ``shell``."""
    if shell is Shell.ZSH:
        return _ZSH.format(program=program, name=program.replace("-", "_"), variable=variable(program)).rstrip()
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    return get_completion_script(prog_name=program, complete_var=variable(program), shell=shell.value)


def variable(program: str) -> str:
    """The environment variable that requests completion."""
    return f"_{program.replace('-', '_').upper()}_COMPLETE"


def prepare() -> None:
    """Register the shells with typer, which does so itself only for programs with its completion options."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Job names in the namespace of the command line, or of the context."""
    return _starting(incomplete, _ask(ctx, _jobs_path))


def namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of namespaces."""
    return _starting(incomplete, _ask(ctx, lambda _namespace: "/api/v1/namespaces"))


def contexts(incomplete: str) -> list[str]:
    """Contexts of the kubeconfig."""
    with _silently():
        from elastrain_cli.client import kubeconfig

        return _starting(incomplete, kubeconfig.contexts(kubeconfig.places()))
    return []


def kubectl(app: typer.Typer) -> None:
    """Print what completes ``kubectl etj ...``, whose commands are ``app``.

    Reads the words of the command line; the last is incomplete. Prints the candidates and then cobra's directive: 4 (no
    file names) or 0. Source: https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
    """
    words = sys.argv[1:] or [""]
    found: list[str] = []
    with _silently():
        found = list(offered(app, words[:-1], words[-1]))
    print("\n".join([*found, ":4" if found else ":0"]))  # noqa: T201 - kubectl reads it


def offered(app: typer.Typer, words: list[str], incomplete: str) -> Iterator[str]:
    """Candidates for ``incomplete`` after ``words`` of ``kubectl etj``."""
    from typer.main import get_command

    prepare()
    command: Any = get_command(app)
    complete = _completer()(command, {}, "kubectl etj", "_KUBECTL_ETJ_COMPLETE")
    for item in complete.get_completions(words, incomplete):
        yield str(item.value)


def _completer() -> Any:
    from typer._completion_classes import BashComplete

    return BashComplete


def _starting(incomplete: str, found: Iterable[str]) -> list[str]:
    return sorted(name for name in found if name.startswith(incomplete))


def _jobs_path(namespace: str) -> str:
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"


def _ask(ctx: typer.Context, path: Any) -> list[str]:
    """Names of the objects at ``path(namespace)``; empty if the cluster does not answer in time."""
    with _silently():
        return asyncio.run(_names(ctx.params.get("namespace"), ctx.params.get("context"), path))
    return []


async def _names(namespace: str | None, context: str | None, path: Any) -> list[str]:
    from elastrain_cli.client.connection import Connection

    async with asyncio.timeout(SECONDS):
        connection = await Connection.open(namespace=namespace, context=context, request_seconds=SECONDS)
        try:
            query = {"limit": "500"}
            answer = await connection.call("GET", path(connection.namespace), "complete names", query=query)
        finally:
            await connection.close()
    return [str(item["metadata"]["name"]) for item in answer["items"]]


@contextlib.contextmanager
def _silently() -> Iterator[None]:
    """Suppress all errors and output: any text would land inside the user's command line."""
    with contextlib.suppress(Exception), open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # noqa: PTH123
        yield
