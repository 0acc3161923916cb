"""The dry part of ``make gpu``: its programs run on the CPU, with gloo in NCCL's place."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from bench_gpu import in_place
from bench_gpu.checks import CHECKS, Site, groups_in_place
from bench_gpu.report import NotPossible, Report


@pytest.mark.nightly  # as the other benchmarks
@pytest.mark.timeout(240)
def test_every_check_that_needs_no_gpu_passes_on_the_cpu(tmp_path, warm) -> None:
    site = Site(tmp_path, warm, dry=True)
    lines = [line for check in CHECKS.values() for line in check(site)]
    assert {line.name: line.why for line in lines if line.outcome == "fail"} == {}
    elastic = ["a group of nccl2, changed in place"] if in_place.obstacle(dir(in_place.c10d), dry=True) is None else []
    assert [line.name for line in lines if line.outcome == "pass"] == [
        "three ranks on the card",
        "abort of a kernel without its peer",
        "form and abort, again and again",
        *elastic,
        "a model of GPT-2's size",
    ]
    facts = {"command": "", "began": "", "device": "CPU", "torch": "", "nccl": ""}
    report = Report(dry=True, lines=lines, **facts)
    assert len(report.tables[0].rows) == 8
    assert "no figure means anything" in report.notes[-1]


@pytest.mark.parametrize(
    ("names", "dry", "why"),
    [
        ((), True, "2.14 is the first"),
        ((), False, "2.14 is the first"),
        (("ReconfigureOptions",), False, "no nccl2"),
        (("ReconfigureOptions",), True, ""),
        (("ReconfigureOptions", "ProcessGroupNCCL2"), False, ""),
    ],
)
def test_a_group_is_changed_in_place_if_this_torch_can(names, dry, why) -> None:
    found = in_place.obstacle(names, dry=dry) or ""
    assert why in found and bool(found) == bool(why)


def test_the_line_says_that_it_is_not_possible_here_if_torch_changes_no_group(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(in_place, "obstacle", lambda *_, **__: "this torch cannot")
    (said,) = groups_in_place(Site(tmp_path, None, dry=True))  # type: ignore[arg-type]
    assert (said.outcome, said.why) == ("not possible here", "this torch cannot")


def test_no_group_of_nccl2_is_made_if_there_is_no_driver(monkeypatch) -> None:
    """Its destructor would end the process."""
    made: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(dist, "init_process_group", lambda *a, **k: made.append(a))
    with pytest.raises(NotPossible):
        in_place.Member(0, 0, dry=False)
    assert not made
