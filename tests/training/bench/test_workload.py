"""The workload that benchmarks train, and the devices that it may train on."""

import pytest
import torch
import typer

from bench_harness import program, workload
from bench_harness.names import ENV_STATE_MIB


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_a_gpu_is_refused_with_the_reason_if_torch_sees_none(capsys) -> None:
    with pytest.raises(typer.Exit):
        program.cards("cuda")
    assert "sees no GPU" in capsys.readouterr().err
    assert program.cards("cpu") == 1


def test_frozen_state_gets_no_gradient_and_a_step_changes_none_of_it(monkeypatch) -> None:
    monkeypatch.setattr(workload, "TABLE_ROWS", 8)
    monkeypatch.setenv(ENV_STATE_MIB, "192")
    net, optimizer = workload.build()
    tables = [of.weight.clone() for of in net.base]
    inputs, labels = workload.data()[:4]
    workload.loss(net, inputs, labels).backward()
    optimizer.step()
    assert len(tables) == 3
    assert all(torch.equal(a, b.weight) and b.weight.grad is None for a, b in zip(tables, net.base, strict=True))
    assert all(p.grad is not None for p in net.head.parameters())
