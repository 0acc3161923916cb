"""The command ``elastrain plan``: reads the options, prints the plan."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from elastrain.api import names
from elastrain_cli.shell.answers import Output
from elastrain_cli.shell.manual import Program
from elastrain_cli.shell.printing import print_data, print_error
from elastrain_plan.choose import Plan, choose, duration
from elastrain_plan.model import GB, Cluster, Constants, unit
from elastrain_plan.record import Measured, measured
from elastrain_plan.sensitivity import ABOUT, ASSUMED, PUBLISHED, effects

MODEL = "A model, not a measurement."
MTTF = 50_000.0
"""Hours between unplanned losses of a card: 419 in 54 days on 16,384 cards (The Llama 3 Herd of Models, 2024)."""
FOR_STATE = 0.6
"""Part of a card's memory that the state may take; activations and buffers take the rest. Assumed."""

SPACE = " " * 12
SHOWN = 4
"""Numbers whose effect is shown."""

Number = TypeVar("Number", int, float)

Mttf = Annotated[
    float | None,
    typer.Option(help="Hours between unplanned losses of one card. Default: 50,000, as in Llama 3's run.", min=1e-3),
]
Record = Annotated[
    Path | None,
    typer.Option("--from", help="A job's status, - for stdin: cards, step, phases and mttf are what it measured."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Replace a constant of the model: repair=600. Repeatable.", metavar="NAME=VALUE"),
]

app = Program(add_completion=False)


@app.command()
def plan(
    *,
    cards: Annotated[int | None, typer.Option(help="Cards that train.", min=1)] = None,
    state: Annotated[
        float,
        typer.Option(help="GB of one copy of the training state: 12 to 16 bytes a parameter with Adam.", min=1e-6),
    ],
    step: Annotated[float | None, typer.Option(help="Seconds of an undisturbed step.", min=1e-6)] = None,
    mttf: Mttf = None,
    price: Annotated[float | None, typer.Option(help="Of a card for an hour. Default: no costs.", min=0)] = None,
    per_node: Annotated[int, typer.Option(help="Cards of a node.", min=1)] = 8,
    card_memory: Annotated[
        float, typer.Option(help="GB of a card, of which the state may take 60 %.", min=1e-6)
    ] = 80.0,
    group: Annotated[
        int | None, typer.Option(help="Cards that hold one copy of the state. Default: the fewest.", min=1)
    ] = None,
    full_size: Annotated[
        float, typer.Option(help="Part of the time for which spares keep all replicas training. 0: no spares.")
    ] = 0.0,
    from_: Record = None,
    set_: Changes = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="Format of the output.")] = Output.TABLE,
) -> None:
    """Estimate by a model how much of the paid time a job trains, and which settings lose least.

    It names group, spares, checkpoint interval and tier, each with its reason, then the part of the paid time by cause,
    and which of the numbers decide: measure these on your cluster before you believe the plan.
    -o json lists all constants, of which --set replaces any; docs/sizing.md names their sources.

    Examples:

        elastrain plan --cards 64 --state 16 --step 0.5
        elastrain plan --cards 1024 --state 1120 --step 8 --price 2.5
        elastrain plan --cards 64 --state 16 --step 1 --full-size 0.95 -o json
        elastrain plan --cards 64 --state 16 --step 1 --set repair=600
        elastrain status lm -o json | elastrain plan --from - --state 16
    """
    try:
        if output in {Output.WIDE, Output.NAME}:
            raise ValueError(f"--output {output}: a plan is printed as table, json or yaml")
        found = None if from_ is None else _record(from_)
        cluster = Cluster(
            cards=_needed("--cards", cards, found.cards if found else None),
            per_node=per_node,
            state=state * GB,
            step=_needed("--step", step, found.step if found else None),
            mttf=mttf or (found.mttf if found else None) or MTTF,
            constants=constants(set_ or [], found),
        )
        made = choose(cluster, card_memory * FOR_STATE * GB, group, full_size)
    except (ValueError, OSError) as error:
        print_error(str(error), names.EXIT_USAGE, output)
        raise typer.Exit(names.EXIT_USAGE) from None
    if output is Output.TABLE:
        typer.echo(text(cluster, made, price))
    else:
        print_data(document(cluster, made, price), output)


def _record(path: Path) -> Measured:
    from elastrain_resource.job import ElasticTrainingJob

    read = sys.stdin.read() if str(path) == "-" else path.read_text()
    try:
        return measured(ElasticTrainingJob.model_validate_json(read))
    except ValueError as error:
        if str(error).startswith("--from"):
            raise
        raise ValueError(f"--from {path}: not a job; take the output of elastrain status JOB -o json") from None


def _needed(option: str, given: Number | None, found: Number | None) -> Number:
    """The option's value, or that of the job's record. Raises ``ValueError``."""
    value = found if given is None else given
    if value is None:
        raise ValueError(f"{option}: missing; give it, or --from with the status of a job that has measured it")
    return value


def constants(changes: list[str], found: Measured | None) -> Constants:
    """The model's constants, replaced by those of a job's record, and these by ``changes`` (NAME=VALUE).

    Raises ``ValueError``.
    """
    known = [field.name for field in fields(Constants)]
    changed = dict(found.constants) if found else {}
    for change in changes:
        name, _, value = change.partition("=")
        if name not in known:
            raise ValueError(f"--set {change}: no constant {name!r}; there are {', '.join(known)}")
        try:
            changed[name] = float(value)
        except ValueError:
            raise ValueError(f"--set {change}: must be NAME=NUMBER, such as {name}=2") from None
    try:
        return replace(Constants(), **changed)
    except ValueError as error:
        raise ValueError(f"--set {error}") from None


def costs(cluster: Cluster, made: Plan, price: float) -> dict[str, float]:
    """Money a day for all paid cards, for the part that does not train, and for one trained hour of a card."""
    paid = cluster.cards + made.settings.spares * unit(cluster, made.settings.group)
    day = paid * 24 * price
    return {
        "day": day,
        "lostDay": day * (1 - made.split.training),
        "trainedCardHour": price / made.split.training,
    }


def document(cluster: Cluster, made: Plan, price: float | None) -> dict[str, Any]:
    """The plan as data."""
    return {
        "note": MODEL,
        "settings": asdict(made.settings),
        "reasons": [asdict(advice) for advice in made.advice],
        "paidTime": asdict(made.split),
        "cost": None if price is None else costs(cluster, made, price),
        "lossesPerDay": cluster.rate * 86_400,
        "constants": asdict(cluster.constants),
        "effects": [asdict(effect) for effect in effects(cluster, made.settings)],
    }


def text(cluster: Cluster, made: Plan, price: float | None) -> str:
    """The plan for people."""
    nodes = f"{cluster.nodes} node{'s' * (cluster.nodes != 1)}"
    daily = cluster.rate * 86_400
    often = (
        f"{daily:.3g} unplanned losses a day" if daily >= 1 else f"one unplanned loss in {duration(1 / cluster.rate)}"
    )
    lines = [f"{MODEL} {cluster.cards} cards on {nodes}, {often}.", ""]
    for advice in made.advice:
        lines += [
            f"{advice.setting:<12}{advice.value}",
            *textwrap.wrap(advice.reason, 100, initial_indent=SPACE, subsequent_indent=SPACE),
        ]
    lines += ["", "part of the paid time"]
    lines += [f"  {cause:<12}{100 * part:8.3f} %" for cause, part in asdict(made.split).items()]
    if price is not None:
        cost = costs(cluster, made, price)
        lines += [
            "",
            f"cost        {cost['day']:,.0f} a day, of which {cost['lostDay']:,.0f} do not train; "
            f"{cost['trainedCardHour']:.4g} for an hour of a card that trains",
        ]
    lines += ["", f"{'trains, in %, if the number is':<54}{'half':>10}{'twice':>10}"]
    for effect in effects(cluster, made.settings)[:SHOWN]:
        words = f"  {f'{effect.name}={effect.value:g}':<18}{ABOUT[effect.name]}"
        lines.append(f"{words:<54}{100 * effect.half:10.3f}{100 * effect.twice:10.3f}")
    own = asdict(Constants())
    kept = [name for name, value in asdict(cluster.constants).items() if value == own[name]]
    if assumed := [name for name in ASSUMED if name in kept]:
        lines += ["", f"assumed, not measured: {', '.join(assumed)}; --set {assumed[0]}=VALUE replaces one"]
    if published := [name for name in PUBLISHED if name in kept]:
        lines.append(f"as others have published of NCCL, not measured here: {', '.join(published)}")
    return "\n".join(lines)
