"""The check of a node before a worker trains on it."""

from __future__ import annotations

import threading

import pytest
import torch

from elastrain.api import names
from elastrain_cli import preflight


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(preflight, "BUFFER", {"cpu": 2**20, "": 2**20})


def lines(capsys) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_a_sound_machine_passes_and_the_table_lists_its_devices(tmp_path, capsys):
    assert preflight.run(0, None, 60, tmp_path / "log") == 0
    table = lines(capsys)
    assert [row[:2] for row in table] == [["ok", "compute"], ["ok", "bandwidth"], ["ok", "shared"]]
    assert table[1][-1] == "GB/s"
    assert not (tmp_path / "log").exists(), "there is nothing to report to the operator"


def test_node_is_refused_if_accelerators_are_missing(tmp_path, capsys):
    assert preflight.run(10_000, None, 60, tmp_path / "log") == 10
    assert "of 10000" in (tmp_path / "log").read_text()
    assert lines(capsys)[0][:2] == ["FAILED", "accelerator"]


def test_node_is_refused_if_one_value_is_wrong(monkeypatch, tmp_path):
    real = torch.Tensor.cpu

    def one_bit_wrong(self):
        copy = real(self).clone()
        copy[7, 9] += 1
        return copy

    monkeypatch.setattr(torch.Tensor, "cpu", one_bit_wrong)
    assert preflight.run(0, None, 60, tmp_path / "log") == 11
    assert f"1 of {preflight.MATRIX**2} values wrong" in (tmp_path / "log").read_text()


def test_node_is_refused_with_the_driver_s_message_if_a_device_raises(monkeypatch, tmp_path):
    def no_memory(*_):
        raise RuntimeError("CUDA error: an illegal\n memory access")

    monkeypatch.setattr(preflight, "_compute", no_memory)
    assert preflight.run(0, None, 60, tmp_path / "log") == 11
    assert "CUDA error: an illegal memory access" in (tmp_path / "log").read_text()


def test_node_is_refused_if_its_memory_is_slower_than_required(tmp_path):
    assert preflight.run(0, 1e9, 60, tmp_path / "log") == 12
    assert "GB/s, at least 1e+09 required" in (tmp_path / "log").read_text()


def test_node_is_refused_if_shared_memory_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "SHM", tmp_path / "none")
    assert preflight.run(0, None, 60, tmp_path / "log") == 13


def test_process_ends_if_a_device_hangs(monkeypatch, tmp_path):
    ended, codes = threading.Event(), []
    monkeypatch.setattr(preflight.os, "_exit", lambda code: (codes.append(code), ended.set()))
    monkeypatch.setattr(preflight, "_checks", lambda *_: iter(ended.wait, True))
    preflight.run(0, None, 0.01, tmp_path / "log")
    assert codes == [14]
    assert "a device or its driver hangs" in (tmp_path / "log").read_text()


def test_every_check_has_an_exit_code_that_no_shell_or_signal_uses():
    assert set(names.PREFLIGHT_EXITS.values()) == {
        "accelerator",
        "compute",
        "bandwidth",
        "shared memory",
        "time",
        "pairs",
    }
    assert all(2 < code < 64 for code in names.PREFLIGHT_EXITS)
