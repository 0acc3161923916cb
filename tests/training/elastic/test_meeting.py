"""How the ranks of a generation find each other."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from elastrain.elastic.comm import exchange as module
from elastrain.elastic.comm import meeting
from elastrain.elastic.comm.exchange import Meeting
from elastrain.elastic.comm.meeting import MeetingPoint
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.transport import CalledOff


def bring(generation, rank: int, **options) -> dict[str, str]:
    meeting = Meeting(generation, rank, options.get("called_off", lambda: False))
    return meeting.exchange({f"key/{rank}": f"value {rank}"})


def test_every_rank_gets_the_values_of_all(generation, each) -> None:
    g = generation(5)
    assert each(lambda r: bring(g, r), range(5)) == [{f"key/{k}": f"value {k}" for k in range(5)}] * 5


def test_the_values_of_all_are_encoded_once_however_many_ranks_receive_them(generation, each, monkeypatch) -> None:
    encoded: list[dict] = []
    framed = meeting.framed
    monkeypatch.setattr(meeting, "framed", lambda message: encoded.append(message) or framed(message))
    g = generation(5)
    each(lambda r: bring(g, r), range(5))
    assert [len(message["values"]) for message in encoded if "timeout" not in message] == [5]


def test_generations_do_not_see_each_others_values(generation, each) -> None:
    old, new = generation(2, number=1), generation(2, number=2)
    each(lambda r: bring(old, r), range(2))

    def rank(r: int) -> dict[str, str]:
        return Meeting(new, r, lambda: False).exchange({f"key/{r}": "new"})

    assert each(rank, range(2)) == [{"key/0": "new", "key/1": "new"}] * 2


def test_the_wait_ends_if_it_is_called_off(generation) -> None:
    unwanted = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bring, generation(2), 0, called_off=unwanted.is_set)
        unwanted.set()
        with pytest.raises(CalledOff):
            waiting.result(10)


def test_missing_ranks_are_named_after_the_timeout(generation, monkeypatch) -> None:
    monkeypatch.setattr(module, "MEETING_SECONDS", 0.2)
    with pytest.raises(PeerLost, match=r"generation 1: no rank of w1, w2 has come within 0.2 s; do all workers run"):
        bring(generation(3), 0)


def test_the_meeting_point_is_named_if_it_does_not_answer(generation, meeting_point, monkeypatch) -> None:
    monkeypatch.setattr(module, "MEETING_SECONDS", 0.2)
    meeting_point.close()
    where = f"127.0.0.1:{meeting_point.port} \\(w0\\) does not answer"
    with pytest.raises(PeerLost, match=where):
        bring(generation(2), 1)


def test_closing_returns_if_another_thread_has_closed_the_point_at_the_same_time(meeting_point, monkeypatch) -> None:
    meeting_point.close()
    monkeypatch.setattr(meeting_point._thread, "is_alive", lambda: True)  # its loop is closed, it has not yet ended
    meeting_point.close()


def test_a_rank_meets_the_others_if_its_member_serves_the_point_later(generation, meeting_point, monkeypatch) -> None:
    meeting_point.close()
    g = generation(1, number=7)
    reached = Meeting._reach
    later: list[MeetingPoint] = []

    def reach(self, end):
        if not later:  # the first attempt finds no server
            later.append(MeetingPoint("127.0.0.1"))
            later[0].expect(g)
        elif g.store != ("127.0.0.1", later[0].port):
            place = g.members[0].model_copy(update={"store_port": later[0].port})
            self._generation = g.model_copy(update={"members": (place,)})
        return reached(self, end)

    monkeypatch.setattr(Meeting, "_reach", reach)
    assert bring(g, 0) == {"key/0": "value 0"}
    later[0].close()


def test_a_disconnected_rank_does_not_count(generation, each, monkeypatch) -> None:
    g = generation(2)
    unwanted = threading.Event()
    unwanted.set()
    with pytest.raises(CalledOff):
        bring(g, 0, called_off=unwanted.is_set)
    monkeypatch.setattr(module, "MEETING_SECONDS", 0.5)
    end = time.monotonic() + 10
    while True:  # the server detects it later
        try:
            bring(g, 1)
        except PeerLost as e:
            assert "w0" in str(e)
            break
        assert time.monotonic() < end
    assert each(lambda r: bring(g, r), range(2)) == [{"key/0": "value 0", "key/1": "value 1"}] * 2


def test_ranks_of_another_protocol_do_not_meet(generation, each, monkeypatch) -> None:
    monkeypatch.setattr(module, "MEETING_SECONDS", 0.3)
    g = generation(2)

    def rank(r: int) -> str:
        with pytest.raises(PeerLost) as error:
            Meeting(g, r, lambda: False, protocol=module.PROTOCOL + r).exchange({})
        return str(error.value)

    assert all("do all workers run the same version of elastrain?" in message for message in each(rank, range(2)))


@pytest.mark.parametrize("rubbish", [b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"[1]\n", b"\xff\n", b""])
def test_the_meeting_continues_if_a_client_sends_an_invalid_request(generation, meeting_point, each, rubbish) -> None:
    with socket.create_connection(("127.0.0.1", meeting_point.port)) as stranger:
        stranger.sendall(rubbish)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(100) == b""
    g = generation(2)
    assert each(lambda r: bring(g, r), range(2)) == [{"key/0": "value 0", "key/1": "value 1"}] * 2


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        MeetingPoint("192.0.2.1")
