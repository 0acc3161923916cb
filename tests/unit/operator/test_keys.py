"""The keys of etcd: a CA is replaced without a moment in which a client meets a certificate that it does not trust."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from elastrain_operator import clock
from elastrain_operator.keys import certificates, keeper
from elastrain_operator.keys.certificates import Pair
from elastrain_operator.keys.decide import (
    DAY,
    LOOK,
    RENEWAL,
    ROLLBACK,
    SPREAD,
    SUCCESSION,
    Act,
    Authority,
    Certificate,
    Keys,
    Member,
    Wanted,
    decide,
)
from elastrain_operator.keys.keeper import CA, CA_KEY, CERTIFICATE, TRUSTED, Keeper, MissingSecret, Names
from elastrain_operator.keys.secrets import Secret
from elastrain_operator.kube.client import ApiError

HOSTS = frozenset({"etcd.training.svc", "127.0.0.1"})
WANTED = Wanted(HOSTS, members=3)
SETTLED = Keys(Authority("a", 0.0), None, certificate=Certificate("a", HOSTS, 0.0), trusted=frozenset("a"))
ROLLING = replace(SETTLED, successor=Authority("b", 0.0), trusted=frozenset("ab"), unaware=frozenset({"uid-1"}))
READY = tuple(Member(f"etcd-{n}", f"uid-{n}", True) for n in range(3))
RESTARTED = tuple(replace(m, uid=f"new-{m.uid}") for m in READY)


# ---- decisions -------------------------------------------------------------------------------------------------------
def act(keys: Keys, now: float, members: tuple[Member, ...] = RESTARTED, wanted: Wanted = WANTED) -> Act:
    return decide(keys, members, wanted, now).act


@pytest.mark.parametrize(
    ("keys", "now", "expected"),
    [
        (Keys(), 0.0, Act.CREATE),
        (Keys(older_chart=True), 0.0, Act.ADOPT),
        (replace(SETTLED, certificate=None, trusted=frozenset()), 0.0, Act.ISSUE),
        (SETTLED, RENEWAL - 1, Act.WAIT),
        (SETTLED, RENEWAL, Act.ISSUE),
        (replace(SETTLED, certificate=Certificate("a", frozenset({"other"}), 0.0)), 0.0, Act.ISSUE),
        (replace(SETTLED, certificate=Certificate("a", HOSTS, SUCCESSION)), SUCCESSION, Act.BEGIN),
        (replace(SETTLED, made_for="before"), 0.0, Act.BEGIN),
        (replace(SETTLED, authority=Authority("a", 0.0, of_release=True)), 0.0, Act.BEGIN),
        (replace(SETTLED, successor=Authority("b", 0.0)), 0.0, Act.TRUST),
        (replace(SETTLED, trusted=frozenset("ab")), 0.0, Act.TRUST),
    ],
)
def test_act_follows_from_what_the_secrets_hold(keys: Keys, now: float, expected: Act) -> None:
    assert act(keys, now) is expected


def test_next_ca_issues_nothing_until_clients_had_time_and_every_member_was_restarted() -> None:
    assert act(ROLLING, SPREAD - 1, READY) is Act.WAIT
    decision = decide(ROLLING, READY, WANTED, SPREAD)
    assert (decision.act, decision.member) == (Act.EVICT, READY[1])
    assert act(ROLLING, SPREAD, (READY[0], replace(RESTARTED[1], is_ready=False), READY[2])) is Act.WAIT
    assert act(ROLLING, SPREAD, (READY[0], RESTARTED[1], READY[2])) is Act.PROMOTE


def test_no_member_is_restarted_while_another_one_is_away() -> None:
    assert act(ROLLING, SPREAD, READY[1:]) is Act.WAIT
    assert act(ROLLING, SPREAD, (READY[0], READY[1], replace(READY[2], is_ready=False))) is Act.WAIT


def test_a_single_member_is_not_restarted_because_it_has_no_peers() -> None:
    assert act(ROLLING, SPREAD, (), replace(WANTED, members=1)) is Act.PROMOTE


def test_ca_of_an_older_chart_issues_for_a_day_so_that_a_rollback_cuts_no_client_off() -> None:
    adopted = replace(ROLLING, authority=Authority("a", 0.0, of_release=True))
    assert act(adopted, ROLLBACK - 1) is Act.WAIT
    assert act(adopted, ROLLBACK) is Act.PROMOTE


def test_former_ca_is_trusted_until_clients_have_seen_the_certificate_of_the_next_one() -> None:
    former = replace(SETTLED, former=frozenset("z"), trusted=frozenset("az"), changed=DAY)
    assert act(former, DAY + SPREAD - 1) is Act.WAIT
    assert act(former, DAY + SPREAD) is Act.FORGET
    assert act(replace(former, made_for="again"), DAY) is Act.WAIT, "one CA after the other"


# ---- the executor, over a simulated year -----------------------------------------------------------------------------
class Cluster:
    """Secrets and pods in memory. It records who trusts and shows what, and refuses a write to an old version."""

    def __init__(self) -> None:
        self.secrets: dict[str, Secret] = {name: Secret({}, {}, {}) for name in ("authority", "server", "root")}
        self.pods = {m.name: m for m in READY}
        self.trusted_at_start = dict.fromkeys(self.pods, b"")
        self.fails_once = False

    async def secret(self, name: str) -> Secret | None:
        return self.secrets.get(name)

    async def replace(self, former: Secret, data: Mapping[str, bytes], annotations: Mapping[str, str]) -> None:
        if self.fails_once:
            self.fails_once = False
            raise ApiError("write", 409, "Conflict", "it has changed")
        (name,) = [name for name, known in self.secrets.items() if known is former]
        self.secrets[name] = Secret(dict(data), {**former.annotations, **annotations}, {})
        self.check()

    async def members(self, names: Iterator[str]) -> tuple[Member, ...]:
        return tuple(self.pods[name] for name in names if name in self.pods)

    async def evict(self, member: Member) -> None:
        self.pods[member.name] = replace(member, uid=member.uid + "'")
        self.trusted_at_start[member.name] = self.secrets["server"].data[TRUSTED]

    def check(self) -> None:
        """Each member trusts what the certificate of each is signed by, as it was at its start."""
        shown = self.secrets["server"].data.get(CERTIFICATE) if "server" in self.secrets else None
        for trusted in filter(None, self.trusted_at_start.values()):
            assert shown is None or certificates.issuer_of(shown, certificates.split(trusted).values())


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    return now


NAMES = Names("etcd", "authority", "server", "root", "older")


def run(cluster: Cluster, time: list[datetime], days: float, wanted: Wanted = WANTED) -> list[bytes]:
    """The certificates that were shown for so long, with a look at least every hour."""
    kept = Keeper(cluster, NAMES, wanted)  # type: ignore[arg-type]
    end, shown = time[0] + timedelta(days=days), []
    while time[0] < end:
        try:
            seconds = asyncio.run(kept.step())
        except ApiError:
            seconds = LOOK
        if (certificate := cluster.secrets["server"].data.get(CERTIFICATE)) not in (None, *shown[-1:]):
            shown.append(certificate)
            for name, trusted in cluster.trusted_at_start.items():
                cluster.trusted_at_start[name] = trusted or cluster.secrets["server"].data[TRUSTED]
        time[0] += timedelta(seconds=seconds if seconds < LOOK else 3600)
    return shown


def issuers(cluster: Cluster) -> list[str]:
    return list(certificates.split(cluster.secrets["server"].data[TRUSTED]))


def test_first_installation_gets_keys_of_its_own_and_a_certificate_for_its_names(time: list[datetime]) -> None:
    cluster = Cluster()
    (shown,) = run(cluster, time, 1)
    assert certificates.facts(shown).hosts == HOSTS
    assert issuers(cluster) == [certificates.issuer_of(shown, [cluster.secrets["authority"].data[CA]])]
    root = cluster.secrets["root"].data
    assert {len(value) for value in root.values()} == {64}
    run(cluster, time, 1)
    assert cluster.secrets["root"].data == root
    assert [m.uid for m in cluster.pods.values()] == ["uid-0", "uid-1", "uid-2"], "no member was restarted"


def test_certificate_is_replaced_long_before_it_ends_and_by_the_same_ca(time: list[datetime]) -> None:
    cluster = Cluster()
    shown = run(cluster, time, 365)
    assert len(shown) == 5
    assert len(issuers(cluster)) == 1
    assert certificates.facts(shown[-1]).ends - time[0].timestamp() > 270 * DAY


def test_requested_ca_takes_over_while_all_members_trust_each_other(time: list[datetime]) -> None:
    cluster = Cluster()
    run(cluster, time, 1)
    before = issuers(cluster)
    cluster.fails_once = True
    run(cluster, time, 1, replace(WANTED, request="2030"))
    assert len(issuers(cluster)) == 1
    assert issuers(cluster) != before
    assert [m.uid for m in cluster.pods.values()] == ["uid-0'", "uid-1'", "uid-2'"], "once each"


def test_keys_that_lie_in_releases_of_an_older_chart_become_worthless(time: list[datetime]) -> None:
    cluster = Cluster()
    older = certificates.new_authority("helm", time[0])
    cluster.secrets["older"] = Secret({"tls.crt": older.certificate, "tls.key": older.key}, {}, {})
    (shown,) = run(cluster, time, 0.9)
    assert certificates.issuer_of(shown, [older.certificate]), "clients know its issuer"
    assert len(issuers(cluster)) == 2
    run(cluster, time, 0.5)
    assert not certificates.issuer_of(cluster.secrets["server"].data[CERTIFICATE], [older.certificate])
    assert certificates.facts(older.certificate).fingerprint not in issuers(cluster)
    assert older.key not in cluster.secrets["authority"].data.values()


def test_a_missing_secret_is_named_with_the_way_out() -> None:
    cluster = Cluster()
    del cluster.secrets["server"]
    with pytest.raises(MissingSecret, match="Secret server does not exist: `helm upgrade` creates it"):
        asyncio.run(Keeper(cluster, NAMES, WANTED).step())  # type: ignore[arg-type]


def test_an_entry_that_is_no_certificate_stops_every_act(time: list[datetime]) -> None:
    cluster = Cluster()
    broken = cluster.secrets["authority"] = Secret({CA: b"none", CA_KEY: b"none"}, {}, {})
    with pytest.raises(ValueError, match="PEM"):
        asyncio.run(Keeper(cluster, replace(NAMES, root=""), WANTED).step())  # type: ignore[arg-type]
    assert cluster.secrets["authority"] is broken


def test_certificate_of_another_ca_with_the_same_name_is_not_taken_for_its_own() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    first, second = certificates.new_authority("etcd-ca", now), certificates.new_authority("etcd-ca", now)
    made = certificates.issue("etcd", HOSTS, first, now)
    assert certificates.issuer_of(made.certificate, [second.certificate]) == ""
    with pytest.raises(ValueError, match="PEM"):
        certificates.issue("etcd", HOSTS, Pair(first.certificate, b"no key"), now)
    assert keeper.read(Secret({}, {}, {}), Secret({}, {}, {})) == Keys()
