"""Where several processes run the tests: lanes name files that exist, and the long ones begin first."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from lanes import LANES, Lanes, comes_last, lane, place

ROOT = Path(__file__).parents[3]
THIS = str(Path(__file__).relative_to(ROOT))
FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py"))


@pytest.mark.parametrize("path", [path for paths in LANES.values() for path in paths])
def test_every_path_of_a_lane_exists(path: str) -> None:
    assert (ROOT / path).exists(), "it was renamed or removed: change its line in tests/shared/lanes.py"


def test_one_lane_has_all_files_that_need_an_api_server() -> None:
    needed = [f for f in FILES if "pytest.mark.apiserver" in (ROOT / f).read_text() and f != THIS]
    assert {lane(f) for f in needed} == {"apiserver"}


def test_any_other_file_is_a_lane_of_its_own_and_begins_after_the_long_ones() -> None:
    assert lane("tests/unit/api/test_manifest.py") == "tests/unit/api/test_manifest.py"
    assert place("tests/training/faults/test_faults_etcd.py") < place("tests/unit/api/test_manifest.py")


def test_files_of_the_operator_come_last_in_their_lane() -> None:
    assert comes_last("tests/protocol/operator/test_operator_on_apiserver.py::test_it")
    assert not comes_last("tests/protocol/client/test_client_jobs.py::test_it")


def test_xdist_asks_for_the_lane_of_each_test() -> None:
    assert "self._split_scope(nodeid)" in inspect.getsource(LoadScopeScheduling.schedule), "xdist has renamed it"
    assert Lanes._split_scope(object.__new__(Lanes), "tests/training/faults/test_new.py::test_it[a::b]") == "faults"
