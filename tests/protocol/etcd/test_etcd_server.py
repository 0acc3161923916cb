from __future__ import annotations

import pytest

from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain_cli.etcd_server import EtcdNotFound, find_etcd


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_remedy_is_named_if_there_is_no_etcd(tmp_path):
    environ = {"PATH": str(tmp_path), "ELASTRAIN_CACHE": str(tmp_path)}
    with pytest.raises(EtcdNotFound, match=r"no etcd 3\.4 or newer on PATH or in .*etcd-server.*ELASTRAIN_ETCD"):
        find_etcd(environ=environ)


def test_a_named_binary_must_be_etcd(tmp_path):
    with pytest.raises(EtcdNotFound, match="is not an executable file"):
        find_etcd(tmp_path / "etcd")
    with pytest.raises(EtcdNotFound, match="reports no version"):
        find_etcd(script(tmp_path / "true", "exit 0"))


def test_an_old_etcd_on_the_path_does_not_hide_a_good_one_in_the_cache(tmp_path):
    cache = tmp_path / "cache" / "bin"
    cache.mkdir(parents=True)
    script(tmp_path / "etcd", "echo 'etcd Version: 3.3.25'")
    good = script(cache / "etcd-3.6.6", "echo 'etcd Version: 3.6.6'")
    assert find_etcd(environ={"PATH": str(tmp_path), "ELASTRAIN_CACHE": str(tmp_path / "cache")}) == good
    with pytest.raises(EtcdNotFound, match=r"version 3\.3; it must be 3\.4"):
        find_etcd(tmp_path / "etcd")


def test_a_restart_keeps_port_and_data(etcd_factory):
    server = etcd_factory()
    endpoint, pid = server.endpoint, server.pid
    with EtcdClient(EtcdConfig.of(endpoint)) as client:
        client.put("/x", b"1")
    server.kill()
    assert server.pid is None
    server.start()
    assert (server.endpoint, server.pid) != (endpoint, pid)
    assert server.endpoint == endpoint
    with EtcdClient(EtcdConfig.of(endpoint)) as client:
        assert client.get("/x").value == b"1"


def test_the_log_is_shown_if_etcd_does_not_start(etcd_factory, tmp_path):
    server = etcd_factory()
    server.stop()
    server.binary = script(tmp_path / "etcd", "echo no space left >&2; exit 3")
    with pytest.raises(RuntimeError, match=r"ended with code 3:(.|\n)*no space left"):
        server.start()
