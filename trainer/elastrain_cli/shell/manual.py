"""Formats ``--help``: paragraphs fill the terminal, and the list of commands shows one sentence each, without types.

typer keeps the line breaks of a docstring, shows a flag as ``<bool>`` and a job's name as ``<str>`` in braces.
Docstrings here wrap for the editor; this module wraps them for the terminal.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from pydantic import ValidationError
from typer.core import TyperArgument, TyperCommand

Function = TypeVar("Function", bound=Callable[..., Any])


class Readable:
    """A command or group whose help text is reflowed and whose options show the name of their value."""

    help: str | None
    short_help: str | None
    params: list[Any]

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if self.help:
            self.help = flowing(self.help)
            self.short_help = self.short_help or first_sentence(self.help)
        for parameter in self.params:
            _describe(parameter)

    def get_help_option(self, ctx: Any) -> Any:
        found = super().get_help_option(ctx)  # type: ignore[misc]  # of the other parent
        if found is not None:
            _describe(found)
        return found


class Command(Readable, TyperCommand):
    """A command with a typeable usage line; its refusals name the value and the rule."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = refusal(error)
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = (p for p in self.get_params(ctx) if isinstance(p, TyperArgument))
        return ["[OPTIONS]", *(usage(argument) for argument in arguments)]


class Program(typer.Typer):
    """A typer application of such commands."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        return super().command(name, **{"cls": Command, **settings})


def usage(argument: Any) -> str:
    """The usage text of ``argument``: ``JOB``, or ``[JOB]`` if it is optional."""
    shown = str(argument.metavar or argument.name.upper())  # the operator's own command uses plain typer
    return shown if argument.required or shown.startswith("[") else f"[{shown}]"


def refusal(error: typer.BadParameter) -> str:
    """The reason for a refused value, without the library's own prefix."""
    cause = error.__cause__ or error.__context__
    message = error.message.removeprefix("Value error, ")
    if not isinstance(cause, ValidationError):
        return message
    (first, *_) = cause.errors(include_url=False)
    rule = {"int_parsing": "must be a whole number", "float_parsing": "must be a number"}.get(first["type"])
    return f"{first['input']}: {rule}" if rule else message


def flowing(text: str) -> str:
    """``text`` without line breaks inside its paragraphs. Indented lines (examples) stay unchanged."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if p.startswith(" ") else " ".join(p.split()) for p in paragraphs)


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, for a list with one line for each command."""
    return re.split(r"(?<=[.?]) ", " ".join(text.partition("\n\n")[0].split()))[0]


def _describe(parameter: Any) -> None:
    """Name an option's value after it, ``--port PORT``; a flag takes none."""
    if isinstance(parameter, TyperArgument):
        parameter.metavar = parameter.metavar or parameter.name.upper()
        vars(parameter)["display_type_rich"] = lambda **_: None
    elif parameter.is_flag:
        parameter.metavar = ""
    elif parameter.metavar is None:
        parameter.metavar = max(parameter.opts, key=len).lstrip("-").replace("-", "_").upper()
