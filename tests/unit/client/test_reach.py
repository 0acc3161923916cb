"""Errors of an unreachable cluster and their messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from elastrain_cli.client import JobNotFound, NotAllowed, NotConnected, NotInstalled, Refused, errors, kubeconfig, reach

SERVER = "https://10.1.2.3:6443"
PROXY = {"HTTPS_PROXY": "http://proxy.example:3128"}


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        (SERVER, {}, None),
        (SERVER, PROXY, "http://proxy.example:3128"),
        (SERVER, {"https_proxy": "proxy.example:3128"}, "http://proxy.example:3128"),
        (SERVER, {"HTTP_PROXY": "http://proxy.example:3128"}, None),
        ("https://127.0.0.1:6443", PROXY, None),
        ("https://localhost:6443", PROXY, None),
        ("https://[::1]:6443", PROXY, None),
        (SERVER, PROXY | {"NO_PROXY": "*"}, None),
        (SERVER, PROXY | {"NO_PROXY": "10.1.2.3"}, None),
        (SERVER, PROXY | {"NO_PROXY": "10.1.2.3:443"}, "http://proxy.example:3128"),
        (SERVER, PROXY | {"NO_PROXY": "192.168.0.0/16, 10.0.0.0/8"}, None),
        (SERVER, PROXY | {"no_proxy": "10.2.0.0/16"}, "http://proxy.example:3128"),
        ("https://api.corp.example", PROXY | {"NO_PROXY": ".corp.example"}, None),
        ("https://api.corp.example", PROXY | {"NO_PROXY": "corp.example"}, None),
        ("https://corp.example", PROXY | {"NO_PROXY": "corp.example"}, None),
        ("https://corp.example", PROXY | {"NO_PROXY": ".corp.example"}, "http://proxy.example:3128"),
        ("https://notcorp.example", PROXY | {"NO_PROXY": "corp.example"}, "http://proxy.example:3128"),
    ],
)
def test_the_environments_proxy_is_chosen_as_kubectl_chooses_it(server, environ, proxy) -> None:
    assert reach.proxy_of(server, environ) == proxy


def test_a_proxys_password_is_not_shown() -> None:
    assert reach.shown("http://me:secret@proxy.example:3128") == "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "no answer from https://10.1.2.3:6443 within 15 s; is the cluster up, the VPN on?"),
        (ConnectionResetError(104, "Connection reset by peer"), "(Connection reset by peer)"),
    ],
)
def test_an_error_is_explained(error: BaseException, words: str) -> None:
    assert words in reach.why(error, SERVER, None, 15.0).replace("[Errno 104] ", "")


# ---- answers ---------------------------------------------------------------------------------------------------------
def denial(user: str, verb: str, where: str = ' in the namespace "research"') -> str:
    words = f'x is forbidden: User \\"{user}\\" cannot {verb} resource \\"elastictrainingjobs\\" in API group '
    return f'{{"kind": "Status", "message": "{words}\\"elastrain.dev\\"{where.replace(chr(34), chr(92) + chr(34))}"}}'


@pytest.mark.parametrize(
    ("code", "body", "kind", "words"),
    [
        (401, '{"kind": "Status", "message": "Unauthorized"}', NotAllowed, "have expired or belong to another cluster"),
        (403, denial("ada", "create"), NotAllowed,
         "user ada may not create elastictrainingjobs.elastrain.dev in namespace research; request a role with this "
         "verb: kubectl create rolebinding elastrain-edit -n research --clusterrole=edit --user=ada"),
        (403, denial("system:serviceaccount:research:bot", "list", " at the cluster scope"), NotAllowed,
         "cluster-wide; request a role with this verb: kubectl create clusterrolebinding elastrain-view "
         "--clusterrole=view --serviceaccount=research:bot; or select one namespace: -n research"),
        (403, denial("system:anonymous", "list"), NotAllowed, "the request had no credentials"),
        (403, '{"kind": "Status", "message": "exceeded quota: gpus"}', Refused, "exceeded quota: gpus"),
        (404, "404 page not found\n", NotInstalled, "its operator is not installed; helm install elastrain"),
        (404, '{"kind": "Status", "message": "x not found", "details": {"kind": "namespaces"}}', Refused,
         "there is no namespace research; kubectl create namespace research"),
        (404, '{"kind": "Status", "message": "gone", "details": {"kind": "elastictrainingjobs"}}', JobNotFound,
         "namespace research has no job digits"),
        (404, "<html>nginx</html>", NotConnected, "not from a Kubernetes API server (HTTP 404: <html>nginx</html>)"),
        (503, "upstream connect error", NotConnected, "the API server is unhealthy: HTTP 503: upstream connect error"),
        (400, "An HTTP request to an HTTPS server.", NotConnected, "is the address in the kubeconfig right"),
        (422, '{"kind": "Status", "message": "spec.replicas: 9"}', Refused, "spec.replicas: 9"),
    ],
)  # fmt: skip
def test_an_error_response_becomes_an_error_with_a_remedy(code: int, body: str, kind: type, words: str) -> None:
    error = errors.of_answer("list jobs", "research", "digits", code, body)
    assert type(error) is kind
    assert words in str(error)


# ---- kubeconfigs -----------------------------------------------------------------------------------------------------
@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({"contexts": [{"name": "prod-eu"}, {"name": "dev"}]}))
    return path


def test_a_missing_kubeconfig_leads_to_local_mode(tmp_path: Path) -> None:
    words = kubeconfig.why_not(ValueError(), [tmp_path / "nowhere"], None, {})
    assert f"there is no kubeconfig: {tmp_path}/nowhere does not exist" in words
    assert "elastrain run FILE trains on this machine" in words


def test_a_context_that_is_nearly_right_is_corrected(config: Path) -> None:
    assert kubeconfig.why_not(ValueError(), [config], "prodeu", {}).endswith("did you mean prod-eu?")
    assert kubeconfig.why_not(ValueError(), [config], "xyz", {}).endswith("known are prod-eu, dev")


def test_a_broken_kubeconfig_is_named(config: Path) -> None:
    assert "it lacks 'cluster'" in kubeconfig.why_not(KeyError("cluster"), [config], None, {"KUBECONFIG": str(config)})


@pytest.mark.parametrize("text", ["", "[", "contexts: 5", "contexts: [{}]", "\x00"])
def test_an_invalid_kubeconfig_has_no_contexts(config: Path, text: str) -> None:
    config.write_text(text)
    assert kubeconfig.contexts([config]) == ()


def test_several_kubeconfigs_are_read(config: Path) -> None:
    environ = {"KUBECONFIG": f"/nowhere:{config}"}
    assert kubeconfig.contexts(kubeconfig.places(environ=environ)) == ("prod-eu", "dev")
