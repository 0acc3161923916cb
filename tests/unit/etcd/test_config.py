from __future__ import annotations

import pytest
import trustme

from elastrain.etcd import EtcdConfig


def test_endpoints_are_split_and_get_the_default_port():
    assert EtcdConfig.of("a; b:1,[::1]:7").endpoints == ("a:2379", "b:1", "[::1]:7")


def test_environment_is_read_back_as_written(tmp_path):
    password, ca = tmp_path / "password", tmp_path / "ca.crt"
    password.write_text("secret")
    trustme.CA().cert_pem.write_to_path(ca)
    config = EtcdConfig.of("a:1,b:2", username="u", password_file=str(password), ca=str(ca))
    assert EtcdConfig.from_environment(config.to_environment()) == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"endpoints": " "}, "at least one host:port"),
        ({"endpoints": "http://a:1"}, "without a scheme"),
        ({"endpoints": "a:x"}, "'a:x': must be host:port"),
        ({"endpoints": "a:70000"}, "port from 1 to 65535"),
        ({"endpoints": "a", "username": "u"}, "user and password file must be given together"),
        ({"endpoints": "a", "ca": "/nowhere"}, "CA: '/nowhere' is not a file"),
    ],
)
def test_an_invalid_configuration_is_named(arguments, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        EtcdConfig.of(**arguments)


def test_missing_endpoints_name_the_variable():
    with pytest.raises(ValueError, match="ELASTRAIN_ETCD_ENDPOINTS is not set"):
        EtcdConfig.from_environment({})
