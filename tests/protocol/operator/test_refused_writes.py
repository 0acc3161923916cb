"""An alarm of etcd, on a real one: what the operator sees of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain.etcd.protocol import messages
from elastrain_cli.etcd_server import EtcdServer
from elastrain_etcd.maintenance import Alarm, AlarmKind, EtcdMaintenance
from elastrain_operator.records.writes import trial


@pytest.mark.parametrize("kind", AlarmKind)
def test_a_trial_names_the_alarm_until_it_is_disarmed(etcd_factory: Callable[[], EtcdServer], kind: AlarmKind) -> None:
    with EtcdClient(EtcdConfig.of(etcd_factory().endpoint)) as client:
        assert trial(client) is None
        maintenance = EtcdMaintenance(client)
        alarm = Alarm(maintenance.status().member, kind)
        number = {AlarmKind.NOSPACE: 1, AlarmKind.CORRUPT: 2}[kind]
        request = messages.AlarmRequest(action=1, memberID=alarm.member, alarm=number)
        client.wire.unary("maintenance", "Alarm", request, timeout=5, what="raise an alarm")
        assert maintenance.alarms() == [alarm]
        refusal = trial(client)
        assert refusal is not None
        assert refusal.alarm == kind
        maintenance.disarm(alarm)
        assert trial(client) is None
