"""Selectors of devices: which are evaluated, and that nothing else is guessed."""

from __future__ import annotations

import time

import pytest

from elastrain_operator.devices.selectors import NotCounted, _parsed, holds, parse

DRIVER = "gpu.example.com"
ATTRIBUTES = {f"{DRIVER}/type": "gpu", f"{DRIVER}/index": 3, f"{DRIVER}/healthy": True, "dra.net/numa": 1}
CAPACITY = {f"{DRIVER}/memory": 80 * 2**30}


def passes(text: str) -> bool:
    results = []
    failed: NotCounted | None = None
    for test in parse(text):
        try:
            results.append(holds(test, DRIVER, ATTRIBUTES, CAPACITY))
        except NotCounted as error:
            failed = error
    if failed and all(results):
        raise failed
    return all(results)


@pytest.mark.parametrize(
    ("selector", "outcome"),
    [
        ("device.driver == 'gpu.example.com'", True),
        ('device.driver == "other.example.com"', False),
        ("device.driver != 'gpu.example.com'", False),
        ("device.attributes['gpu.example.com'].type == 'gpu'", True),
        ('device.attributes["gpu.example.com"]["type"] == "gpu"', True),
        ("device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].type == 'gpu'", True),
        ("(device.driver == 'gpu.example.com') && (device.attributes['gpu.example.com'].type != 'gpu')", False),
        ("device.attributes['gpu.example.com'].type == 'a && b'", False),
        ("device.attributes['gpu.example.com'].index < 4", True),
        ("device.attributes['gpu.example.com'].index >= 4", False),
        ("device.attributes['dra.net'].numa == 1", True),
        ("device.attributes['gpu.example.com'].healthy", True),
        ("!device.attributes['gpu.example.com'].healthy", False),
        ("device.attributes['gpu.example.com'].healthy == true", True),
        ("device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) >= 0", True),
        ("device.capacity['gpu.example.com'].memory.compareTo(quantity('80Gi')) > 0", False),
        ("device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('40Gi'))", True),
        ("device.capacity['gpu.example.com'].memory.isLessThan(quantity('40Gi'))", False),
        ("device.driver == 'other' && device.attributes['gpu.example.com'].unknown == 'x'", False),
    ],
)
def test_device_passes_if_all_comparisons_hold(selector, outcome):
    assert passes(selector) is outcome


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        ("", "more than comparisons"),
        ("true", "more than comparisons"),
        ("device.driver == 'a' || device.driver == 'b'", "more than comparisons"),
        ("!(device.driver == 'a')", "more than comparisons"),
        ("device.attributes['gpu.example.com'].type.startsWith('g')", "more than comparisons"),
        ("device.attributes['gpu.example.com'].type in ['gpu']", "more than comparisons"),
        ("device.attributes['gpu.example.com'].type == 'a\\'b'", "has an escape"),
        ("device.attributes['gpu.example.com'].healthy < true", "orders truth values"),
        ("device.attributes['gpu.example.com'].unknown == 'x'", "does not have"),
        ("device.attributes['gpu.example.com'].type == 3", "another type"),
        ("device.attributes['gpu.example.com'].healthy == 1", "another type"),
        ("device.capacity['gpu.example.com'].cores.compareTo(quantity('1')) >= 0", "does not have"),
        ("device.capacity['gpu.example.com'].memory.compareTo(quantity('much')) >= 0", "unreadable quantity"),
        ("device.driver == 'x' && \"", "no end"),
        ("device.driver == 'x'" + " " * 1000, "more than 1000 characters"),
        (" && ".join(["device.driver == 'x'"] * 17), "more than 16 terms"),
    ],
)
def test_devices_are_not_counted_if_a_selector_is_not_evaluated(selector, why):
    with pytest.raises(NotCounted, match=why):
        passes(selector)


HOSTILE = ["'\"" * 490, "&&" * 490, "&& '" * 240, "(" * 490 + ")" * 490, "[" * 990, "&&true" * 160, ' && ""' * 160]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_selector_costs_time_linear_in_its_text_and_only_once(text):
    def seconds() -> float:
        began = time.thread_time()
        with pytest.raises(NotCounted):
            parse("true" + (text * 10)[:960] + r'&&"\""=="\""')
        return time.thread_time() - began

    _parsed.cache_clear()
    first = seconds()
    assert first < 0.005
    hits = _parsed.cache_info().hits
    seconds()
    assert _parsed.cache_info().hits == hits + 1, "a refusal is kept"
