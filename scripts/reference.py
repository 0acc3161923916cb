"""Writes the pages that follow from the code, so that they cannot be wrong: fields of ElasticTrainingJob, commands, the
Python client, the calls of the training loop, the zoo of scripts, and the list of decisions.

``scripts/reference.py --write`` (``make reference``) updates them; ``--check`` only compares, and exits with 1 naming
what differs. To be run in the repository's root.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import itertools
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import typer

from elastrain.elastic.contract import RULES, Effect, Phase
from elastrain_cli import client
from elastrain_cli import main as cli
from elastrain_cli.client import errors
from elastrain_cli.shell import guests
from elastrain_cli.shell.manual import usage
from elastrain_operator import __main__ as operator_command
from elastrain_resource import podfields as fields
from elastrain_resource.schema.crd import crd

NOTE = "<!-- Written by scripts/reference.py (`make reference`). Do not edit. -->\n\n"
MARK = "<!-- From here on written by scripts/reference.py (`make reference`). Do not edit. -->\n"
"""Above it a page is written by hand, below it by this program."""
LARGEST = 2**31 - 1
"""A bound that only says that it is a 32-bit number."""

HELD = " may only change while suspend is true: running workers keep their former setting"
"""The end of a rule that the description of its field says, too."""

SHARED = 5
"""So many commands must have an option for the page to explain it once."""

JOB = Path("docs/reference/job.md")
POD = Path("docs/reference/pod.md")
COMMANDS = Path("docs/reference/cli.md")
PYTHON = Path("docs/reference/python.md")
ZOO = Path("docs/zoo.md")
SCRIPTS = Path("examples/zoo")
DECISIONS = Path("docs/decisions/index.md")

Schema = Mapping[str, Any]


# ---- fields of the resource, from the CRD's schema -------------------------------------------------------------------
def job_page(document: Schema) -> str:
    """Every field of ``spec`` and ``status`` with type, default, rule and description."""
    spec = document["spec"]
    (version,) = spec["versions"]
    root = version["schema"]["openAPIV3Schema"]
    (short,) = spec["names"]["shortNames"]
    lines = [
        f"# {spec['names']['kind']}",
        "",
        f"`apiVersion: {spec['group']}/{version['name']}`, short name `{short}`. {root['description']}",
        "",
        f"Look up a field; `kubectl explain {short}.spec` says the same. How fields work together: [a job's "
        "life](../lifecycle.md), [sharing a cluster](../capacity.md), [what may change in a living "
        "job](../lifecycle.md#a-changed-template).",
        "",
        *_rules(root),
    ]
    for part in ("spec", "status"):
        lines += [f"## {part}", "", root["properties"][part]["description"], ""]
        lines += [*_table(root["properties"][part], part), *_rules(root["properties"][part])]
    lines += ["## Columns of kubectl get", ""]
    for column in version["additionalPrinterColumns"]:
        wide = ", with `-o wide`" if column.get("priority") else ""
        lines.append(f"- {column['name']}{wide}: `{column['jsonPath']}`")
    return "\n".join(lines) + "\n"


def _table(schema: Schema, path: str) -> Iterator[str]:
    """A list of the fields of ``path``, and of theirs; ``spec``'s fields have lists of their own."""
    parts = list[tuple[str, Schema]]()
    yield from _rows_of(schema, "", parts if path == "spec" else None)
    yield ""
    for here, inner in parts:
        yield from (f"### `{path}.{here}`", "", *_table(inner, f"{path}.{here}"))


def _rows_of(schema: Schema, prefix: str, apart: list[tuple[str, Schema]] | None) -> Iterator[str]:
    """An item for each field; behind it those of its own fields, unless they go ``apart``."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        facts = [_type(field), *_bounds(field)]
        if name in required:
            facts.append("required")
        if "default" in field:
            facts.append(f"default `{json.dumps(field['default'])}`")
        inner = field["items"] if field.get("type") == "array" else field
        here = prefix + name + ("" if inner is field else "[]")
        meaning = field.get("description", "")
        if inner.get("properties") and apart is not None:
            apart.append((here, inner))
            meaning += f" [Its fields](#{re.sub('[^a-z0-9]', '', f'spec.{here}'.lower())})."
        meaning += "".join(f" *Rule:* {rule['message']}." for rule in field.get("x-kubernetes-validations", ()))
        yield f"- `{prefix}{name}` ({_cell(', '.join(facts))}): {_cell(meaning)}"
        if inner.get("properties") and apart is None:
            yield from _rows_of(inner, f"{here}.", None)


def _type(field: Schema) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    match field.get("type"):
        case "array":
            return f"list of {_type(field['items'])}s"
        case "object" if isinstance(field.get("additionalProperties"), Mapping):
            return f"map of strings to {_type(field['additionalProperties'])}s"
        case kind:
            return str(kind)


def _bounds(field: Schema) -> Iterator[str]:
    if "enum" in field:
        yield "one of " + ", ".join(f"`{value}`" for value in field["enum"])
    if "minimum" in field:
        yield f"at least {field['minimum']}"
    if field.get("maximum", LARGEST) != LARGEST:
        yield f"at most {field['maximum']}"
    if word := re.fullmatch(r"\^(\w+)\$", field.get("pattern", "")):
        yield f"or `{word[1]}`"
    for key, words in (("minItems", "at least {} items"), ("maxItems", "at most {} items")):
        if key in field:
            yield words.format(field[key])
    if field.get("minLength"):
        yield "not empty"
    if "maxLength" in field:
        yield f"at most {field['maxLength']} characters"


def _rules(schema: Schema) -> Iterator[str]:
    """Rules between fields, in the words with which the API server refuses."""
    messages = [rule["message"] for rule in schema.get("x-kubernetes-validations", ())]
    if messages:
        own = [f"- {message}" for message in messages if not message.endswith(HELD)]
        held = [f"- each field that says so{HELD}"] if len(own) < len(messages) else []
        yield from ("Rules:", "", *own, *held, "")


# ---- commands, from typer --------------------------------------------------------------------------------------------
def commands_page() -> str:
    """Every command with its arguments and options."""
    top: Any = typer.main.get_command(cli.app)
    commands = {f"elastrain {name}": guests.actual(top.commands[name]) for name in sorted(top.commands)}
    rows = Counter(row for command in commands.values() for row in _rows(command))
    shared = [row for row, times in rows.items() if times >= SHARED]
    lines = [
        "## All commands",
        "",
        "The text of `--help` of every command. Commands for the cluster are the same under `kubectl etj`. They share:",
        "",
        *shared,
        "",
    ]
    for title, command in commands.items():
        lines += _command(title, command, shared)
    lines += _command("python -m elastrain_operator", typer.main.get_command(operator_command.cli), ())
    return "\n".join(lines).rstrip() + "\n"


def _rows(command: Any) -> Iterator[str]:
    """One item of a list for each argument and option."""
    for p in command.params:
        if p.param_type_name == "argument":
            yield f"- `{usage(p)}`: {_cell(getattr(p, 'help', '') or '')}"
        elif not p.hidden:
            yield _option(p)


def _command(title: str, command: Any, shared: Collection[str]) -> Iterator[str]:
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    arguments = [usage(p) for p in command.params if p.param_type_name == "argument"]
    line = [title, *(["[OPTIONS]"] if options else []), *arguments]
    yield from (f"### {title}", "", f"`{' '.join(line)}`", "", _markdown(command.help or ""), "")
    if rows := [row for row in _rows(command) if row not in shared]:
        yield from (*rows, "")


def _option(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    if not parameter.is_flag:
        names += f" `{parameter.metavar or parameter.name.upper()}`"
    variable = f" (`${parameter.envvar}`)" if getattr(parameter, "envvar", None) else ""
    default = f" ({value})" if (value := _default(parameter)) else ""
    return f"- {names}{default}: {_cell(parameter.help or '')}{variable}"


def _default(parameter: Any) -> str:
    value = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    if parameter.required:
        return "required"
    return "" if value in (None, "", (), [], False) or callable(value) else f"`{value}`"


def _markdown(help_: str) -> str:
    """Help written for a terminal: rich's bold becomes Markdown's; indented examples are code, those in a line are
    made so."""
    text = re.sub(r"\[/?bold\]", "**", inspect.cleandoc(help_).replace("\f", ""))
    text = re.sub(
        r"^(Examples?:) ([^`\n]+)$", lambda m: f"{m[1]} `{m[2].replace(', ', '`, `')}`", text, flags=re.MULTILINE
    )
    return "\n".join(line.rstrip() for line in text.splitlines())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


# ---- the Python client, from its signatures and docstrings -----------------------------------------------------------
def client_page() -> str:
    """Methods, what they return, and errors."""
    lines = [
        "## All methods of the client",
        "",
        "`Jobs` has the same methods without `async` and "
        "`await`; where `AsyncJobs` has `await AsyncJobs.connect(...)`, it is `Jobs(...)`. Jobs are models of "
        "[ElasticTrainingJob](job.md).",
        "",
        "## AsyncJobs",
        "",
        _prose(client.AsyncJobs.__doc__),
        "",
    ]
    for name, member in vars(client.AsyncJobs).items():
        function = member.__func__ if isinstance(member, classmethod) else member
        if not name.startswith("_") and inspect.isfunction(function):
            lines += [
                f"### {name}",
                "",
                "```python",
                _signature(name, function),
                "```",
                "",
                _prose(function.__doc__),
                "",
            ]
    lines += ["## What they return", ""]
    for kind in (client.Worker, client.Event, client.LogLine):
        lines += [f"### {kind.__name__}", "", _prose(kind.__doc__), ""]
        lines += [
            f"- `{field}` (`{type_}`){': ' if words else ''}{_cell(_prose(words))}"
            for field, type_, words in _attributes(kind)
        ]
        lines.append("")
    lines += ["## Errors of the client", "", "| class | raised when |", "| --- | --- |"]
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.ClusterError):
            lines.append(f"| `{name}` | {_cell(_prose(kind.__doc__))} |")
    return "\n".join(lines).rstrip() + "\n"


def loop_page() -> str:
    """The contract of the training loop: what each call does in each phase."""
    letters = dict(zip(Phase, ascii_uppercase, strict=False))
    lines = [
        "## Calls in the training loop",
        "",
        "The effect of each call of a [training script](../training-scripts.md), by the phase in which the script "
        "makes it. *Skipped*: the call does nothing and returns None. The runtime enforces these tables.",
        "",
        "| | phase | the script runs |",
        "| --- | --- | --- |",
        *(f"| {letter} | {phase.value} | {phase.about} |" for phase, letter in letters.items()),
        "",
        "| call | acts in | skipped in | raises in, with its way out |",
        "| --- | --- | --- | --- |",
    ]
    raised: list[str] = []
    for call, rules in RULES.items():
        cells: dict[str, str] = dict.fromkeys(("acts", "skipped"), "")
        refused: dict[int, str] = {}
        for phase, letter in letters.items():
            rule = rules[phase]
            if rule.effect is not Effect.RAISES:
                cells[rule.effect.value] += letter
                continue
            if rule.way_out not in raised:
                raised.append(rule.way_out)
            number = raised.index(rule.way_out) + 1
            refused[number] = refused.get(number, "") + letter
        ways_out = "; ".join(f"{_runs(where)} [{number}]" for number, where in refused.items())
        lines.append(f"| {_cell(call.value)} | {_runs(cells['acts'])} | {_runs(cells['skipped'])} | {ways_out} |")
    lines += ["", "The error of a call that raises names the phase and the way out:", ""]
    lines += [f"{number}. {way_out[0].upper()}{way_out[1:]}." for number, way_out in enumerate(raised, start=1)]
    return "\n".join(lines) + "\n"


def _runs(letters: str) -> str:
    """``ACDEF`` as ``A, C–F``."""
    starts = [at for at, letter in enumerate(letters) if at == 0 or ord(letter) != ord(letters[at - 1]) + 1]
    runs = [letters[start:end] for start, end in itertools.pairwise([*starts, len(letters)])]
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _signature(name: str, function: Callable[..., Any]) -> str:
    """As it stands in the source, without ``self``."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = node.args
    arguments.args = arguments.args[1:]
    words = re.sub(r"(: [^,=]*[^,= ])=", r"\1 = ", ast.unparse(arguments))
    keyword = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{keyword}def {name}({words}){returns}"
    if len(line) <= 90:
        return line
    each = [part.strip() for part in re.split(r",\s*(?![^\[]*\])", words)]
    return f"{keyword}def {name}(\n" + "".join(f"    {part},\n" for part in each) + f"){returns}"


def _attributes(kind: type) -> Iterator[tuple[str, str, str]]:
    """Name, type and docstring of each field of a data class."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            says = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            words = after.value.value if says else ""  # type: ignore[union-attr]
            yield field.target.id, ast.unparse(field.annotation), str(words)


def _prose(docstring: str | None) -> str:
    """A docstring as Markdown: no roles, single backticks."""
    text = inspect.cleandoc(docstring or "")
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`")


# ---- the zoo of scripts ----------------------------------------------------------------------------------------------
def zoo_page(folder: Path) -> str:
    """Each script of ``folder`` for plain DDP and for elastrain: how many lines differ."""
    lines = [
        "# The zoo",
        "",
        "Training scripts in the shapes that people copy. Each exists twice in `examples/zoo`: `ddp.py` for plain "
        "DDP, `elastic.py` for elastrain. Tests disturb each elastic script by a new worker, a `kill -9`, a SIGTERM "
        "and a smaller target at random steps, and compare everything that it saves with the undisturbed run: to "
        '1e-10 in float64, with `numerics="bitwise"` to the bit. What each call does: '
        "[calls in the training loop](reference/python.md#calls-in-the-training-loop). To see the changes of one: "
        "`diff -u examples/zoo/NAME/ddp.py examples/zoo/NAME/elastic.py`, or `elastrain convert` "
        "([from DDP to elastic](convert.md)).",
        "",
        "| script | lines | removed | added | what it is |",
        "| --- | --- | --- | --- | --- |",
    ]
    for elastic in sorted(folder.glob("*/elastic.py")):
        name, before = elastic.parent.name, elastic.with_name("ddp.py").read_text().splitlines()
        difference = [
            *difflib.unified_diff(before, elastic.read_text().splitlines(), "ddp.py", "elastic.py", "", "", 1, "")
        ]
        removed, added = (sum(line.startswith(sign) for line in difference[2:]) for sign in "-+")
        what = _cell((ast.get_docstring(ast.parse(elastic.read_text())) or "").partition("\n\n")[0])
        lines.append(f"| [{name}](../examples/zoo/{name}) | {len(before)} | {removed} | {added} | {what} |")
    return "\n".join(lines) + "\n"


# ---- decisions -------------------------------------------------------------------------------------------------------
FOLDED = "## Records folded into this one"
"""The last heading of a record that took others over: a list of ``- NNNN: title``."""


def folded_records(folder: Path) -> dict[str, tuple[str, str]]:
    """Number of a record that is no more -> (its title, file of the record that took it over)."""
    return {
        number: (title, file.name)
        for file in sorted(folder.glob("[0-9]*.md"))
        for number, title in re.findall(r"^- (\d{4}): (.+)$", file.read_text().partition(FOLDED)[2], re.MULTILINE)
    }


def decisions_page(folder: Path) -> str:
    """The decisions that stand, and where the numbers of former records have gone."""
    lines = [
        "# Decisions",
        "",
        "One living record per subject: what is decided, why, with the figures that still matter, and what was "
        "tried and dropped. A new finding changes its record. Users need none of them.",
        "",
        "| | decision |",
        "| --- | --- |",
    ]
    for file in sorted(folder.glob("[0-9]*.md")):
        title = re.sub(r"^# (?:\d+[:.] )?", "", file.read_text().splitlines()[0])
        lines.append(f"| [{file.name[:4]}]({file.name}) | {title[:1].upper()}{title[1:]} |")
    lines += ["", "## Former numbers", "", "| number | title | now in |", "| --- | --- | --- |"]
    for number, (title, file_name) in sorted(folded_records(folder).items()):
        lines.append(f"| {number} | {title} | [{file_name[:4]}]({file_name}) |")
    return "\n".join(lines) + "\n"


# ---- fields of the pod template --------------------------------------------------------------------------------------
def pod_page() -> str:
    """What becomes of each field of a job's pod template."""
    lines = [
        "# Fields of the pod template",
        "",
        "`spec.template` is a pod template. A field reaches the worker's pod as it is, also one that is not listed "
        "here, unless its row says **refused** or **set by the operator**. A job with a refused field gets no pods: "
        "PodsReady is `TemplateInvalid`, with the field, its value and the way out.",
    ]
    for title, place in (
        ("spec.template.metadata", fields.METADATA),
        ("spec.template.spec", fields.POD),
        ("The training container", fields.TRAINER),
        ("Other containers", fields.BESIDE),
        ("Init containers", fields.INIT),
    ):
        lines += ["", f"## {title}", "", "| field | |", "| --- | --- |"]
        noted = {name: field for name, field in place.items() if field.note}
        alike: dict[str, list[str]] = {}
        for name, field in sorted(noted.items()):
            alike.setdefault(_becomes(field) + field.note, []).append(f"`{name}`")
        lines += [f"| {', '.join(names)} | {becomes} |" for becomes, names in alike.items()]
    return "\n".join(lines) + "\n"


def _becomes(field: fields.Field) -> str:
    return "" if field.treatment is fields.Treatment.PASSED else f"**{field.treatment}**: "


# ---- all of them -----------------------------------------------------------------------------------------------------
def generated_files(root: Path = Path()) -> dict[Path, str]:
    """What ``--write`` writes: path under ``root`` -> text."""
    return {
        JOB: NOTE + job_page(crd()),
        POD: NOTE + pod_page(),
        COMMANDS: below_the_mark(root / COMMANDS, commands_page()),
        PYTHON: below_the_mark(root / PYTHON, f"{loop_page()}\n{client_page()}"),
        ZOO: NOTE + zoo_page(root / SCRIPTS),
        DECISIONS: NOTE + decisions_page(root / DECISIONS.parent),
    }


def below_the_mark(page: Path, text: str) -> str:
    """``page`` as it is down to `MARK`, and ``text`` after it, with the headings one level lower where it has them."""
    by_hand, mark, _ = page.read_text().partition(MARK)
    if not mark:
        raise SystemExit(f"{page}: the line {MARK.strip()} is missing")
    return f"{by_hand}{MARK}\n{text}"


def stale(root: Path = Path()) -> dict[Path, str]:
    """Pages that are not what the code says, with what it does say."""
    return {
        path: text
        for path, text in generated_files(root).items()
        if not (root / path).is_file() or (root / path).read_text() != text
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/reference.py", description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="update the pages")
    mode.add_argument("--check", action="store_true", help="exit with 1 if a page is not up to date")
    options = parser.parse_args(arguments)
    found = stale()
    for path, text in found.items():
        if options.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        sys.stderr.write(
            f"wrote {path}\n" if options.write else f"{path}: differs from the code; run `make reference`\n"
        )
    return 1 if found and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
