"""The slow network of a benchmark (bench_harness/relay.py): when a packet arrives."""

from __future__ import annotations

import json
import random

import pytest

from bench_harness.network import LINKS, free_subnet
from bench_harness.relay import QUEUE_SECONDS, Link, Switch

A, B, C = 3, 4, 5
SLOW = Link("80 kB/s, 0.1 s", megabits=0.64, delay=0.1)


def switch(link: Link) -> Switch:
    return Switch(link, (A, B, C), random.Random(1))


def test_a_packet_takes_its_time_on_the_line_and_the_delay():
    assert switch(SLOW).arrival(10.0, A, B, 800) == pytest.approx(10.0 + 0.01 + 0.1)
    assert switch(Link("no limits")).arrival(10.0, A, B, 800) == 10.0


def test_packets_wait_for_the_line_of_their_sender_and_the_order_stays():
    one = switch(SLOW)
    arrivals = [one.arrival(0.0, A, to, 800) for to in (B, C, B)]
    assert arrivals == pytest.approx([0.11, 0.12, 0.13])


def test_packets_of_two_senders_wait_for_the_line_of_their_receiver():
    one = switch(SLOW)
    assert [one.arrival(0.0, sender, C, 800) for sender in (A, B)] == pytest.approx([0.11, 0.12])


def test_a_line_that_is_behind_by_its_queue_loses_packets_until_it_is_free():
    one = switch(SLOW)
    sent = [one.arrival(0.0, A, B, 800) for _ in range(40)]
    kept = int(QUEUE_SECONDS / 0.01) + 1
    assert all(sent[:kept]) and not any(sent[kept:])
    assert one.arrival(1.0, A, B, 800) == pytest.approx(1.11)


def test_the_part_of_the_packets_that_is_lost_is_that_of_the_link():
    one = switch(Link("one in ten", loss=0.1))
    lost = sum(one.arrival(0.0, A, B, 100) is None for _ in range(10_000))
    assert 900 < lost < 1100


def test_each_link_of_the_option_goes_to_the_relay_and_back():
    assert all(Link(**json.loads(link.dump())) == link for link in LINKS.values())


def test_two_made_networks_have_different_subnets():
    first = free_subnet("", 263)
    assert first == "10.251.7"
    assert free_subnet(f"9: el1d0    inet {first}.1/24 scope global el1d0", 263) == "10.251.8"


def test_no_subnet_is_taken_twice_if_all_are_taken():
    with pytest.raises(RuntimeError, match="end other runs"):
        free_subnet("".join(f" 10.251.{number}.1/24" for number in range(256)), 5)
