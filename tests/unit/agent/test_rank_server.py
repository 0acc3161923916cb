"""The socket for ranks, where the process has no descriptor left for a moment."""

from __future__ import annotations

import errno
import queue
import socket

import pytest

from elastrain.agent import socket as module
from elastrain.agent.socket import RankServer
from elastrain.api.messages import Hello


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED])
def test_ranks_can_connect_later_if_accepting_one_has_failed_for_a_while(tmp_path, monkeypatch, error):
    accept, failures = socket.socket.accept, [error, error]

    def flaky(self):
        if failures:
            raise OSError(failures.pop(), "no room")
        return accept(self)

    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(socket.socket, "accept", flaky)
    heard: queue.SimpleQueue = queue.SimpleQueue()
    server = RankServer(tmp_path, 1, heard.put)
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(str(server.path))
        rank.sendall(Hello(local_rank=0, pid=1).encode() + b"\n")
        assert heard.get(timeout=10).local_rank == 0
    server.close()
