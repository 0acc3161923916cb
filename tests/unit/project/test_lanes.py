"""Where several processes run the tests: lanes name files that exist, and the long ones begin first."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
from xdist.scheduler import LoadScopeScheduling

import apart
from lanes import LANES, Lanes, comes_last, lane, order, place

ROOT = Path(__file__).parents[3]
THIS = str(Path(__file__).relative_to(ROOT))
FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py"))


@pytest.mark.parametrize("path", [path for paths in LANES.values() for path in paths])
def test_every_path_of_a_lane_exists(path: str) -> None:
    assert (ROOT / path).exists(), "it was renamed or removed: change its line in tests/shared/lanes.py"


def test_lanes_have_all_files_that_need_an_api_server_and_operators_come_after_the_tests_of_others() -> None:
    def needs(path: str) -> bool:
        return path.endswith("_on_apiserver.py") or "pytest.mark.apiserver" in (ROOT / path).read_text()

    found = sorted([f for f in FILES if needs(f) and f != THIS], key=order)
    assert list(dict.fromkeys(map(lane, found))) == ["apiserver", "operator of one job", "operator of several jobs"]
    assert [comes_last(f) for f in found] == [lane(f) != "apiserver" for f in found]


def test_any_other_file_is_a_lane_of_its_own_and_the_short_ones_are_the_last() -> None:
    unit, other = "tests/unit/api/test_manifest.py", "tests/protocol/etcd/test_lease.py"
    assert (lane(unit), lane(other)) == (unit, other)
    assert place("tests/training/faults/test_faults_etcd.py") < place(other) < place(unit)


def test_processes_agree_on_the_order_if_one_begins_at_the_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "OTHER_END", True)
    config = SimpleNamespace(args=["tests/unit", "tests/training"])
    apart.turned(config)
    assert config.args == ["tests/training", "tests/unit"]
    assert len(set(map(order, FILES))) == len(FILES)


def test_xdist_asks_for_the_lane_of_each_test() -> None:
    assert "self._split_scope(nodeid)" in inspect.getsource(LoadScopeScheduling.schedule), "xdist has renamed it"
    assert Lanes._split_scope(object.__new__(Lanes), "tests/training/faults/test_new.py::test_it[a::b]") == "faults"
