"""Commands of guests (:mod:`elastrain.guests`): listed by name, imported when they run or show their help."""

from __future__ import annotations

from typing import Any

import typer

from elastrain import guests
from elastrain_cli.shell.manual import Command, Program


class GuestCommand(Command):
    """Stands in the list of commands for the one of a guest."""

    module = ""
    """Of the guest: its ``app`` has one command."""

    def command(self) -> Any:
        """The guest's own command. Raises ``ModuleNotFoundError`` if it lacks its extra."""
        found = typer.main.get_command(guests.load(self.module).app)
        found.name = self.name
        return found

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.command().make_context(info_name, args, parent=parent, **extra)


def add(program: Program, name: str, module: str, summary: str, panel: str | None = None) -> None:
    """Add the command of the guest's ``module`` to ``program``. ``summary`` is the first sentence of its help."""

    def listed() -> None:
        """Never called."""

    kind = type("GuestCommand", (GuestCommand,), {"module": module})
    program.command(name, cls=kind, help=summary, rich_help_panel=panel)(listed)


def actual(command: Any) -> Any:
    """``command``, or that of the guest for which it stands."""
    return command.command() if isinstance(command, GuestCommand) else command
