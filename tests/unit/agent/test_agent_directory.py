"""The directory of the agent's sockets."""

import socket
from pathlib import Path

import pytest

from elastrain.agent.directory import places, private_directory


def test_a_socket_fits_in_the_directory_whatever_the_length_of_the_places(tmp_path: Path) -> None:
    short = Path(str(tmp_path)[:60]) if len(str(tmp_path)) > 60 else tmp_path
    for length in (55, 66, 67, 110, 300):
        place = short / ("x" * max(1, length - len(str(short)) - 1))
        try:
            place.mkdir(exist_ok=True)
        except OSError:
            continue
        with private_directory([str(place), "/tmp"]) as directory, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{directory}/agent-9999999999.sock")
            assert Path(directory).stat().st_mode & 0o777 == 0o700
            assert Path(directory).parent == (place if len(str(place)) <= 66 else Path("/tmp"))


def test_a_place_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with private_directory([str(file), "/nowhere", "/proc", "/tmp"]) as directory:
        assert Path(directory).parent == Path("/tmp")


def test_the_error_says_of_each_place_why_it_is_none_and_the_way_out() -> None:
    with pytest.raises(
        OSError, match=r"^no directory .*: /nowhere: No such file.*; /x+: 44 bytes too long .*set TMPDIR"
    ):
        private_directory(["/nowhere", "/" + "x" * 109])


def test_places_are_those_of_the_environment_first() -> None:
    assert places({"TMPDIR": "/a", "TMP": "/tmp"}) == ["/a", "/tmp", "/var/tmp", "/dev/shm"]
