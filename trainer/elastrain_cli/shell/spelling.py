"""Command names of other programs, and job names in other notations."""

from __future__ import annotations

import re

import typer
from typer.core import TyperGroup

from elastrain_cli.shell.manual import Readable

MEANT = {
    "apply": "submit", "cancel": "delete", "check": "doctor", "continue": "resume", "create": "submit",
    "describe": "explain", "events": "status", "follow": "watch", "get": "list", "help": "--help", "info": "status",
    "jobs": "list", "kill": "delete", "launch": "submit", "log": "logs", "ls": "list", "pause": "suspend", "ps": "list",
    "remove": "delete", "resize": "scale", "restart": "resume", "rm": "delete", "show": "status", "start": "submit",
    "stop": "suspend", "tail": "logs", "top": "watch", "train": "run", "verify": "audit", "why": "explain",
}  # fmt: skip
"""Names that kubectl, docker, Slurm and users give to these commands."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KINDS = ("etj/", "elastictrainingjob/", "elastictrainingjobs/", "elastictrainingjob.elastrain.dev/")


class Commands(Readable, TyperGroup):
    """Suggests the command for another program's name or a typing error."""

    def resolve_command(self, ctx, args):  # type: ignore[no-untyped-def]
        meant = MEANT.get(args[0]) if args and args[0] not in self.commands else None
        if meant is not None and (meant in self.commands or meant.startswith("-")):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)


def job_name(given: str | None) -> str | None:
    """The job name in ``given``: ``digits``, or ``etj/digits`` as kubectl prints it.

    None stays None. Raises ``typer.BadParameter`` for an invalid name.
    """
    if given is None:
        return None
    name = next((given.removeprefix(kind) for kind in _KINDS if given.startswith(kind)), given)
    if _NAME.fullmatch(name):
        return name
    namespace, slash, rest = name.partition("/")
    if slash and _NAME.fullmatch(namespace) and _NAME.fullmatch(rest):
        raise typer.BadParameter(f"{given}: contains a namespace; use {rest} -n {namespace}")
    raise typer.BadParameter(f"{given}: is not a job name: use lower-case letters, digits and '-'")
