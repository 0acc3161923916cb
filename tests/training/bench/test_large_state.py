"""A large state in portions beside whole: the figures that were published, and the model that they are of."""

from pathlib import Path

import pytest
import torch

import large_state
from large_state import Report, markdown
from rescale_harness import train_large, workload

DOCS = Path(__file__).parents[3] / "docs"


def test_published_table_is_that_of_the_published_figures() -> None:
    report = Report.model_validate_json((DOCS / "large-state.json").read_bytes())
    assert markdown(report).strip() in (DOCS / "large-states.md").read_text()
    assert {name: len(system.runs) for name, system in report.systems.items()} == {"portions": 3, "whole": 3}


def test_ratios_are_of_the_state_in_portions() -> None:
    report = Report.model_validate_json((DOCS / "large-state.json").read_bytes())
    (_, events), *_ = large_state.tables(report)
    assert events.header.count("× portions") == 2
    by_name = {row[1]: row for row in events.rows}
    assert (by_name["portions"][4], by_name["whole"][4]) == ("1.0", "2.5")


@pytest.mark.parametrize("mebibytes", [64, 192])
def test_most_of_the_state_is_frozen_and_a_step_changes_none_of_it(monkeypatch, mebibytes) -> None:
    monkeypatch.setattr(train_large, "ROWS", 8)
    monkeypatch.setenv(train_large.ENV_FROZEN, str(mebibytes))
    net, optimizer = train_large.build()
    tables = [table.weight.clone() for table in net.base]
    inputs, labels = workload.data()[:4]
    workload.loss(net, inputs, labels).backward()
    optimizer.step()
    assert len(tables) == mebibytes // train_large.TABLE_MIB
    assert all(torch.equal(a, b.weight) and b.weight.grad is None for a, b in zip(tables, net.base, strict=True))
    assert all(p.grad is not None for p in net.head.parameters())
