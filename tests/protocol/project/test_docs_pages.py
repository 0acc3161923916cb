"""The documentation: the navigation reaches all pages, links are valid, alerts and reasons are complete."""

from __future__ import annotations

import ast
import importlib.util
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from elastrain.api import names
from elastrain.elastic.comm.handshake import PROTOCOL
from elastrain_resource import manifest
from elastrain_resource.job import ConditionType

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PROSE = [
    *sorted(DOCS.rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
    ROOT / "e2e/README.md",
]


# ---- pages and links -------------------------------------------------------------------------------------------------
def pages_of(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from [value] if isinstance(value, str) else pages_of(value)


def test_the_navigation_is_short_and_every_entry_is_a_page() -> None:
    named = list(pages_of(SITE["nav"]))
    assert len(named) == len(set(named)) <= 26, "a reader gives up: merge pages, or link the new one from another"
    missing = [page for page in named if not (DOCS / page).is_file()]
    assert not missing, f"mkdocs.yml: nav names pages that do not exist: {missing}"


def test_every_page_can_be_reached_from_the_navigation() -> None:
    reached: set[str] = set()
    waiting = list(pages_of(SITE["nav"]))
    while waiting:
        page = waiting.pop()
        if page not in reached and page.endswith(".md") and (DOCS / page).is_file():
            reached.add(page)
            folder = (DOCS / page).parent
            local = (link.partition("#")[0] for link in links((DOCS / page).read_text()) if "://" not in link)
            found = ((folder / link).resolve() for link in local if link)
            waiting += [str(target.relative_to(DOCS)) for target in found if DOCS in target.parents]
    hidden = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - reached
    assert not hidden, f"no page that a reader can reach links to {sorted(hidden)}"


def test_pages_for_users_need_no_decision_record() -> None:
    sections = {name: list(pages_of(pages)) for section in SITE["nav"] for name, pages in section.items()}
    for page in [*sections["Start"], *sections["Train"], *sections["Operate"], *sections["Reference"]]:
        found = [link for link in links((DOCS / page).read_text()) if "decisions/" in link]
        assert not found, f"docs/{page} sends users to {found}: say there what they need"


def links(text: str) -> Iterator[str]:
    """Targets of links and pictures outside of code."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    yield from re.findall(r"\]\(([^)\s]+)\)", prose)


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_finds_it(page: Path) -> None:
    local = [link.partition("#")[0] for link in links(page.read_text()) if not re.match(r"[a-z]+:", link)]
    missing = [link for link in local if link and not (page.parent / link).exists()]
    assert not missing, f"{page.relative_to(ROOT)}: links to files that do not exist: {missing}"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("see [04](../examples/01-digits).", "see 04 (`examples/01-digits`)."),
        ("see [values.yaml](../charts/elastrain/values.yaml)", "see `charts/elastrain/values.yaml`"),
        ("see [here](../examples/99-none)", "see [here](../examples/99-none)"),
        ("see [capacity](capacity.md#the-rules)", "see [capacity](capacity.md#the-rules)"),
        ("![a picture](../examples/01-digits)", "![a picture](../examples/01-digits)"),
    ],
)
def test_link_out_of_the_pages_becomes_a_name_on_the_site_if_the_file_exists(written: str, shown: str) -> None:
    assert script("site_hooks").names_for_links_out(written, DOCS / "operations.md", DOCS) == shown


def test_cells_are_named_after_their_columns_if_a_phone_can_show_the_rows_as_cards() -> None:
    def table(columns: int) -> str:
        head = "".join(f"<th>c <code>{n}</code></th>" for n in range(columns))
        return f"<table>\n<thead><tr>{head}</tr></thead><tbody><tr>{'<td>x</td>' * columns}</tr></tbody></table>"

    named = script("site_hooks").cells_named_after_columns
    assert '<td data-column="c 0">x</td><td data-column="c 1">x</td>' in named(table(2))
    assert named(table(6)) == table(6), "figures are read side by side"


def test_only_long_names_in_tables_break() -> None:
    page = "<code>{0}</code><table><td><code>{0} {1}</code></td></table>"
    long, short = "elastrain_operator_records_refused_total", "job.on_commit(f)"
    broken = "elastrain_<wbr>operator_<wbr>records_<wbr>refused_<wbr>total"
    shown = script("site_hooks").long_names_that_break(page.format(long, short))
    assert shown == f"<code>{long}</code><table><td><code>{broken} {short}</code></td></table>"


@pytest.mark.parametrize("picture", sorted((DOCS / "images").glob("*.svg")), ids=lambda picture: picture.name)
def test_every_drawing_is_described_and_has_colours_for_the_dark(picture: Path) -> None:
    svg, name = ET.parse(picture).getroot(), "{http://www.w3.org/2000/svg}"
    assert svg.get("role") == "img"
    for part in ("title", "desc"):
        element = svg.find(name + part)
        assert element is not None and element.text and element.get("id") in svg.get("aria-labelledby", "").split()
    assert "prefers-color-scheme: dark" in picture.read_text()


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_every_manifest_in_the_pages_is_valid(page: Path) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
        if re.search(rf"^kind: {names.KIND}$", block, re.MULTILINE):  # not one that another program's settings name
            manifest.loads(block, source=str(page))  # raises, naming field, value and rule


# ---- what follows from the code --------------------------------------------------------------------------------------
def test_pages_made_from_the_code_are_up_to_date() -> None:
    assert not script("reference").stale(ROOT), "run `make reference`"


def test_changelog_names_the_protocol_that_the_next_release_speaks() -> None:
    (said,) = re.findall(
        r"^## Unreleased.*?Protocol between ranks: (\d+)\.", (ROOT / "CHANGELOG.md").read_text(), re.S | re.M
    )
    assert int(said) == PROTOCOL, "images with different protocols cannot train together"


def script(name: str) -> ModuleType:
    """A program of ``scripts/`` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_alert_is_explained_and_no_other() -> None:
    rules = yaml.safe_load((ROOT / "charts/elastrain/files/rules.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert set(re.findall(r"^### (Elastrain\w+)$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)) == alerts


# ---- reasons ---------------------------------------------------------------------------------------------------------
WORD = re.compile(r"[A-Z][a-zA-Z]*[a-z]")
PLACES = {
    "ConditionUpdate": (2,), "JobEvent": (0,), "Trouble": (0,), "Loss": (2,), "Verdict": (1,), "Share": (1,),
    "Outage": (0,), "infrastructure": (0,),
}  # fmt: skip
"""Where calls that make a condition, an event, a loss or a refusal have its reason."""
VARIABLES = {
    "reason", "REASON", "PREFLIGHT", "QUEUED", "UNREADABLE", "REFUSED", "_REASONS", "_KILLED", "_ADDED_FAILED",
}  # fmt: skip
"""Names of what is a reason."""
FILES = [
    *sorted((ROOT / "operator/elastrain_operator").rglob("*.py")),
    *sorted((ROOT / "trainer/elastrain/agent").rglob("*.py")),
    *sorted((ROOT / "trainer/elastrain/api").rglob("*.py")),
    *sorted((ROOT / "trainer/elastrain_resource").rglob("*.py")),
]
NOT_ON_A_CLUSTER = {"Normal", "Warning"}


def words_in(node: ast.expr) -> Iterator[str]:
    """The possible words of an expression: a constant, either side of a condition, any value of a table."""
    match node:
        case ast.Constant(value=str(word)) if WORD.fullmatch(word):
            yield word
        case ast.IfExp():
            yield from (*words_in(node.body), *words_in(node.orelse))
        case ast.BoolOp():
            yield from (word for value in node.values for word in words_in(value))
        case ast.Dict():
            yield from (word for value in node.values for word in words_in(value))


def given_reasons(tree: ast.AST) -> Iterator[str]:
    """Reasons in one source file: arguments in the places above, keywords and variables called reason, what functions
    called so return, first items of what a generator of obstacles yields, and constants that say they are one."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=keywords):
                chosen = [args[i] for i in PLACES.get(name, ()) if i < len(args)]
                chosen += [k.value for k in keywords if k.arg == "reason"]
                yield from (word for expression in chosen for word in words_in(expression))
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in VARIABLES:
                yield from words_in(value)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                named = (value for n, value in zip(names, values, strict=False) if getattr(n, "id", "") in VARIABLES)
                yield from (word for value in named for word in words_in(value))
            case ast.AnnAssign(target=ast.Name(id="reason"), value=ast.expr() as value):
                yield from words_in(value)
            case ast.Yield(value=ast.Tuple(elts=[first, _])):
                yield from words_in(first)
            case ast.FunctionDef(name="_reason"):
                returned = (s.value for s in ast.walk(node) if isinstance(s, ast.Return) and s.value)
                yield from (word for value in returned for word in words_in(value))
            case ast.FunctionDef(name="_unstarted"):
                pairs = (
                    s.value for s in ast.walk(node) if isinstance(s, ast.Return) and isinstance(s.value, ast.Tuple)
                )
                yield from (word for pair in pairs for word in words_in(pair.elts[0]))
            case ast.ClassDef(name="Stop" | "RefusalKind", body=body):
                yield from (word for s in body if isinstance(s, ast.Assign) for word in words_in(s.value))


@cache
def given() -> frozenset[str]:
    """All reasons in the code."""
    return frozenset(word for file in FILES for word in given_reasons(ast.parse(file.read_text())))


def documented() -> set[str]:
    """Words in the first column of the tables of reasons and events."""
    rows = re.findall(r"^\| (`[^|]+) \|", (DOCS / "reference/conditions.md").read_text(), re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`(\w+)`", row)}


GENERATIONS = {"Start", "Grow", "Drain", "Lost", "Broken", "Replace", "Suspend", "Stop"}
OF_THE_POD = {"Unschedulable"}  # Kubernetes' own word, passed on


def test_every_reason_that_the_operator_gives_is_documented() -> None:
    missing = given() - documented() - NOT_ON_A_CLUSTER - {kind.value for kind in ConditionType}
    assert len(given()) > 60, "the reasons were not found: has their form in the code changed?"
    assert not missing, f"docs/reference/conditions.md: no row for {sorted(missing)}"


def test_every_documented_reason_exists() -> None:
    invented = documented() - given() - GENERATIONS - OF_THE_POD
    assert not invented, f"docs/reference/conditions.md: the operator never gives {sorted(invented)}"


def test_every_condition_has_a_table_of_its_reasons() -> None:
    heads = re.findall(r"^## (.+)$", (DOCS / "reference/conditions.md").read_text(), re.MULTILINE)
    named = {name for head in heads for name in re.findall(r"\w+", head.partition(":")[0])}
    assert {kind.value for kind in ConditionType} <= named


def test_troubleshooting_names_reasons_that_exist() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    conditions = {kind.value for kind in ConditionType}
    named = {
        reason
        for head, rest in re.findall(r"(\w+) ((?:`[A-Z]\w+`(?:, | or )?)+)", page)
        if head in conditions | {"WorkerLost", "with"}
        for reason in re.findall(r"`(\w+)`", rest)
    }
    assert len(named) > 25
    assert named <= documented() | {"Succeeded"}, sorted(named - documented())
