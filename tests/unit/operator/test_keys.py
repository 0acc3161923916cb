"""The keys of etcd: certificates are renewed without a moment in which a client meets one that it does not trust."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from elastrain_operator import clock
from elastrain_operator.keys import certificates
from elastrain_operator.keys.certificates import AUTHORITY_DAYS, CertificateFacts, Pair
from elastrain_operator.keys.keeper import (
    AUTHORITY_RENEWAL,
    CA,
    CA_KEY,
    CERTIFICATE,
    DAY,
    KEY,
    LOOK,
    RENEWAL,
    TRUSTED,
    Keeper,
    KeyAct,
    Keys,
    MissingSecret,
    Names,
    Secret,
    next_act,
    read,
)
from elastrain_operator.kube.client import ApiError

HOSTS = frozenset({"etcd.training.svc", "127.0.0.1"})
NOW = datetime.now(UTC)


def made_at(begins: float, hosts: frozenset[str] = HOSTS) -> CertificateFacts:
    return CertificateFacts("a", begins, begins + AUTHORITY_DAYS * DAY, hosts)


SETTLED = Keys(made_at(0.0), certificate=made_at(0.0), is_issued=True, trusted=frozenset("a"))


# ---- decisions -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("keys", "now", "expected"),
    [
        (Keys(), 0.0, KeyAct.CREATE),
        (replace(SETTLED, certificate=None, trusted=frozenset()), 0.0, KeyAct.ISSUE),
        (SETTLED, RENEWAL - 1, None),
        (SETTLED, RENEWAL, KeyAct.ISSUE),
        (replace(SETTLED, certificate=made_at(0.0, frozenset({"other"}))), 0.0, KeyAct.ISSUE),
        (replace(SETTLED, is_issued=False), 0.0, KeyAct.ISSUE),
        (replace(SETTLED, certificate=made_at(AUTHORITY_RENEWAL)), AUTHORITY_RENEWAL, KeyAct.RENEW),
        (replace(SETTLED, trusted=frozenset("ab")), 0.0, KeyAct.TRUST),
        (replace(SETTLED, trusted=frozenset("b"), is_issued=False), 0.0, KeyAct.TRUST),
    ],
)
def test_act_follows_from_what_the_secrets_hold(keys: Keys, now: float, expected: KeyAct | None) -> None:
    due = next_act(keys, HOSTS, now)
    assert (due[0] if due else None) is expected


# ---- trust across a renewal ------------------------------------------------------------------------------------------
def trusts(home: Path, authority: bytes, server: Pair) -> bool:
    """Whether a client with this CA accepts a server with that certificate: a TLS handshake in memory."""
    files = {"ca": authority, "crt": server.certificate, "key": server.key}
    for name, content in files.items():
        (home / name).write_bytes(content)
    serving, using = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(home / "ca"))
    serving.load_cert_chain(home / "crt", home / "key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        serving.wrap_bio(to_server, to_client, server_side=True),
        using.wrap_bio(to_client, to_server, server_hostname="etcd.training.svc"),
    ]
    done = 0
    for _ in range(10):
        for side in sides:
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
    return done >= 2


def test_whoever_has_the_old_or_the_renewed_certificate_of_the_ca_trusts_what_both_have_signed(tmp_path: Path) -> None:
    old = certificates.new_authority("etcd-ca", NOW - timedelta(days=1900))
    new = certificates.renewed(old, NOW)
    other = certificates.new_authority("etcd-ca", NOW)
    assert new.certificate != old.certificate
    assert certificates.facts(new.certificate).ends - certificates.facts(old.certificate).ends > 1890 * DAY
    of_old, of_new = (certificates.issue("etcd", HOSTS, ca, NOW) for ca in (old, new))
    for authority in (old.certificate, new.certificate):
        for server in (of_old, of_new):
            assert trusts(tmp_path, authority, server)
            assert certificates.has_issued(authority, server.certificate)
    assert not trusts(tmp_path, other.certificate, of_new)
    assert not certificates.has_issued(other.certificate, of_new.certificate)


# ---- the keeper, over simulated years --------------------------------------------------------------------------------
class Secrets:
    """In memory. It refuses a write to an old version, if it is to, and checks that each certificate that is shown is
    trusted by each file that clients had."""

    def __init__(self) -> None:
        self.kept: dict[str, Secret] = {name: Secret({}, {}) for name in ("authority", "server", "root")}
        self.trusted: list[bytes] = []
        self.fails_once = False

    async def secret(self, name: str) -> Secret | None:
        return self.kept.get(name)

    async def replace(self, former: Secret, data: Mapping[str, bytes]) -> None:
        if self.fails_once:
            self.fails_once = False
            raise ApiError("write", 409, "Conflict", "it has changed")
        (name,) = [name for name, known in self.kept.items() if known is former]
        self.kept[name] = Secret(dict(data), {})
        if name == "server":
            self.trusted.append(data[TRUSTED])
            assert all(certificates.has_issued(trusted, data[CERTIFICATE]) for trusted in self.trusted)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    return now


NAMES = Names("etcd", "authority", "server", "root")


def run(secrets: Secrets, time: list[datetime], days: float) -> list[bytes]:
    """The certificates that were shown for so long, with a look at least twice a day."""
    kept = Keeper(secrets, NAMES, HOSTS)  # type: ignore[arg-type]
    end, shown = time[0] + timedelta(days=days), []
    while time[0] < end:
        try:
            seconds = asyncio.run(kept.step())
        except ApiError:
            seconds = LOOK
        if (certificate := secrets.kept["server"].data.get(CERTIFICATE)) not in (None, *shown[-1:]):
            shown.append(certificate)
        time[0] += timedelta(seconds=seconds and 43200)
    return shown


def test_first_installation_gets_keys_of_its_own_and_a_certificate_for_its_names(time: list[datetime]) -> None:
    secrets = Secrets()
    (shown,) = run(secrets, time, 1)
    assert certificates.facts(shown).hosts == HOSTS
    assert secrets.kept["server"].data[TRUSTED] == secrets.kept["authority"].data[CA]
    root = secrets.kept["root"].data
    assert {len(value) for value in root.values()} == {64}
    run(secrets, time, 1)
    assert secrets.kept["root"].data == root


def test_certificate_is_replaced_long_before_it_ends_and_by_the_same_ca(time: list[datetime]) -> None:
    secrets = Secrets()
    shown = run(secrets, time, 365)
    assert len(shown) == 5
    assert len(set(secrets.trusted)) == 1
    assert certificates.facts(shown[-1]).ends - time[0].timestamp() > 270 * DAY


def test_the_ca_is_renewed_for_its_key_after_half_of_its_life(time: list[datetime]) -> None:
    secrets = Secrets()
    run(secrets, time, 1)
    key = secrets.kept["authority"].data[CA_KEY]
    time[0] += timedelta(seconds=AUTHORITY_RENEWAL)
    secrets.fails_once = True
    run(secrets, time, 1)
    assert len(set(secrets.trusted)) == 2
    assert secrets.kept["authority"].data[CA_KEY] == key
    assert certificates.facts(secrets.kept["server"].data[TRUSTED]).ends - time[0].timestamp() > 3640 * DAY


def test_a_ca_that_was_taken_away_is_replaced_by_one_with_another_key(time: list[datetime]) -> None:
    """The procedure for a key that others know: docs/operations.md."""
    secrets = Secrets()
    run(secrets, time, 1)
    key, secrets.trusted = secrets.kept["authority"].data[CA_KEY], []
    secrets.kept |= {name: replace(secrets.kept[name], data={}) for name in ("authority", "server")}
    run(secrets, time, 1)
    assert secrets.kept["authority"].data[CA_KEY] != key
    assert secrets.kept["server"].data.keys() == {TRUSTED, CERTIFICATE, KEY}


def test_a_missing_secret_is_named_with_the_way_out() -> None:
    secrets = Secrets()
    del secrets.kept["server"]
    with pytest.raises(MissingSecret, match="Secret server does not exist: `helm upgrade` creates it"):
        asyncio.run(Keeper(secrets, NAMES, HOSTS).step())  # type: ignore[arg-type]


def test_an_entry_that_is_no_certificate_stops_every_act(time: list[datetime]) -> None:
    secrets = Secrets()
    broken = secrets.kept["authority"] = Secret({CA: b"none", CA_KEY: b"none"}, {})
    with pytest.raises(ValueError, match="PEM"):
        asyncio.run(Keeper(secrets, replace(NAMES, root=""), HOSTS).step())  # type: ignore[arg-type]
    assert secrets.kept["authority"] is broken
    first = certificates.new_authority("etcd-ca", NOW)
    with pytest.raises(ValueError, match="PEM"):
        certificates.issue("etcd", HOSTS, Pair(first.certificate, b"no key"), NOW)
    assert read(Secret({}, {}), Secret({}, {})) == Keys()
