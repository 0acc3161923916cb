"""Explains why an API server is unreachable, with the remedy. Pure."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import aiohttp

_CHOICE = "is the right cluster chosen (--context, $KUBECONFIG)?"


def why(error: BaseException, server: str, proxy: str | None, seconds: float) -> str:  # noqa: PLR0911 - one per kind
    """The cause and the remedy for a failed call of ``server`` through ``proxy`` (None: directly) with a limit of
    ``seconds``."""
    by = f" through the proxy {shown(proxy)}" if proxy else ""
    match error:
        case aiohttp.ClientProxyConnectionError():
            return f"the proxy {shown(proxy)} cannot be reached ({system_words(error)}); {_proxy_hint(server)}"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy {shown(proxy)} refuses: {error.status} {error.message}; {_proxy_hint(server)}"
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            return (
                f"the certificate of {server} is not accepted: {_certificate_words(error)}; the kubeconfig must have "
                f"the cluster's own certificate-authority-data; {_CHOICE}"
            )
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return f"{server} does not speak TLS as an API server does{by} ({system_words(error)}); {_CHOICE}"
        case aiohttp.ClientConnectorDNSError():
            return f"the name {urlsplit(server).hostname} does not resolve{by}; is the VPN on? {_CHOICE}"
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            return f"{server} refuses connections; is the cluster up? {_CHOICE}"
        case TimeoutError():
            return f"no answer from {server}{by} within {seconds:g} s; is the cluster up, the VPN on? {_CHOICE}"
        case _:
            return f"no answer from {server}{by} ({system_words(error)}); is the cluster up? {_CHOICE}"


def shown(proxy: str | None) -> str:
    """A proxy's address without its password."""
    if not proxy:
        return "of the environment"
    parts = urlsplit(proxy)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def system_words(error: BaseException) -> str:
    """The operating system's message in one line, if there is one."""
    inner = getattr(error, "os_error", None)
    words = (getattr(inner, "strerror", None) or str(inner)) if inner is not None else str(error)
    return " ".join(words.split()) or type(error).__name__


def _certificate_words(error: BaseException) -> str:
    inner = getattr(error, "certificate_error", error)
    return str(getattr(inner, "verify_message", "") or system_words(inner))


def _proxy_hint(server: str) -> str:
    host = urlsplit(server).hostname
    return f"set by $HTTPS_PROXY or the kubeconfig's proxy-url; to bypass it: NO_PROXY={host}"


def proxy_of(server: str, environ: Mapping[str, str]) -> str | None:
    """The environment's proxy for a call of ``server`` (``https://host:port``); None: no proxy.

    Follows kubectl (Go's golang.org/x/net/http/httpproxy): ``HTTPS_PROXY`` or ``HTTP_PROXY`` by the scheme, also in
    lower case. This machine is always exempt. ``NO_PROXY`` exempts ``*``, the host, its domain, its address, or its
    network (``10.0.0.0/8``), each with or without a port.
    """
    parts = urlsplit(server)
    scheme, host = parts.scheme, (parts.hostname or "").rstrip(".")
    names = (f"{scheme.upper()}_PROXY", f"{scheme}_proxy")
    proxy = next((environ[name] for name in names if environ.get(name)), None)
    if not proxy or is_local(host):
        return None
    port = parts.port or (443 if scheme == "https" else 80)
    excepted = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if any(_covers(entry.strip().lower(), host, port) for entry in excepted.split(",") if entry.strip()):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_local(host: str) -> bool:
    """Whether ``host`` is this machine, by name or address."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _covers(entry: str, host: str, port: int) -> bool:
    """Whether one entry of ``NO_PROXY`` covers ``host``."""
    if entry == "*":
        return True
    address = _address(host)
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, number = entry.rpartition(":")
    if colon and number.isdigit() and (":" not in name or name.endswith("]")):
        if int(number) != port:
            return False
        entry = name.strip("[]")
    if address is not None:
        return _address(entry) == address
    domain = entry.removeprefix("*").lstrip(".")
    # A leading dot excludes the domain itself.
    return host.endswith(f".{domain}") or (host == domain and not entry.startswith((".", "*.")))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
