"""What a member concludes from what lease and watch say of etcd."""

from __future__ import annotations

import pytest

from elastrain.etcd import EtcdUnavailable
from elastrain.rendezvous.contact import Contact

TTL = 5.0
AWAY = EtcdUnavailable("127.0.0.1:2379", "watch", "does not answer")


@pytest.fixture
def contact() -> Contact:
    """Of a member that has just begun to watch."""
    contact = Contact(TTL)
    assert contact.watch_reported(None, True, 0.0) is False
    return contact


def test_an_outage_is_reported_once_if_both_lease_and_watch_notice_it(contact):
    assert contact.watch_reported(AWAY, False, 1.0)
    assert contact.error is AWAY
    assert not contact.lease_reported(AWAY, 2.0)
    assert not contact.reachable


def test_etcd_is_back_only_if_both_lease_and_watch_are(contact):
    contact.watch_reported(AWAY, False, 1.0)
    contact.lease_reported(AWAY, 2.0)
    assert not contact.watch_reported(None, True, 3.0)
    assert contact.error is AWAY
    assert contact.lease_reported(None, 4.0)
    assert contact.reachable and contact.error is None


def test_members_get_a_ttl_to_come_back_if_etcd_was_away(contact):
    assert not contact.outage(0.5)
    contact.lease_reported(AWAY, 1.0)
    contact.lease_reported(None, 10.0)
    assert contact.outage(10.0 + TTL - 0.1)
    assert not contact.outage(10.0 + TTL)
