"""The dry part of ``make gpu``: its programs run on the CPU, with gloo in NCCL's place."""

from __future__ import annotations

import pytest

from bench_gpu.checks import CHECKS, Site
from bench_gpu.report import Report


@pytest.mark.nightly  # as the other benchmarks
@pytest.mark.timeout(240)
def test_every_check_that_needs_no_gpu_passes_on_the_cpu(tmp_path, warm) -> None:
    site = Site(tmp_path, warm, dry=True)
    lines = [line for check in CHECKS.values() for line in check(site)]
    assert {line.name: line.why for line in lines if line.outcome == "fail"} == {}
    assert [line.name for line in lines if line.outcome == "pass"] == [
        "three ranks on the card",
        "abort of a kernel without its peer",
        "form and abort, again and again",
        "a model of GPT-2's size",
    ]
    facts = {"command": "", "began": "", "device": "CPU", "torch": "", "nccl": ""}
    report = Report(dry=True, lines=lines, **facts)
    assert len(report.tables[0].rows) == 7
    assert "no figure means anything" in report.notes[-1]
