"""The plan of a job: parts of the paid time, and the settings that lose least of it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, astuple, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from elastrain_cli.main import app
from elastrain_cli.shell.printing import document
from elastrain_plan.app import constants, text
from elastrain_plan.choose import choose, duration, interval, smallest_group, spares
from elastrain_plan.model import GB, Cluster, Constants, Settings, shortage, split, writing
from elastrain_plan.record import measured
from elastrain_plan.sensitivity import ABOUT, effects
from elastrain_resource.job import ElasticTrainingJob

CARD = 48 * GB
LLAMA = Cluster(cards=16_384, per_node=8, state=6_480 * GB, step=8.0, mttf=50_000.0)

CONSTANTS = st.builds(
    Constants, all_lost=st.sampled_from([0.0, 0.01, 1.0]), repair=st.sampled_from([0.0, 600.0, 1800.0])
)
CLUSTERS = st.builds(
    Cluster,
    cards=st.sampled_from([1, 8, 16, 64, 1024, 98_304]),
    per_node=st.sampled_from([1, 4, 8]),
    state=st.floats(1e6, 40 * GB),
    step=st.floats(0.01, 60),
    mttf=st.floats(500, 1e6),
    constants=CONSTANTS,
)
GROUPS = st.sampled_from([1, 8, None])


def group_of(cluster: Cluster, group: int | None) -> int:
    return cluster.cards if group is None or cluster.cards % group else group


@given(CLUSTERS, GROUPS, st.integers(0, 5), st.integers(1, 10_000))
def test_the_parts_of_the_paid_time_are_never_negative_and_add_up_to_one(cluster, group, held, steps) -> None:
    parts = astuple(split(cluster, Settings(group_of(cluster, group), held, steps, 20)))
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(1)


@given(CLUSTERS, GROUPS, st.floats(1.0, 100.0))
def test_more_failures_never_train_a_larger_part_of_the_paid_time(cluster, group, times) -> None:
    size = group_of(cluster, group)

    def trained(mttf: float) -> float:
        other = replace(cluster, mttf=mttf)
        return split(other, Settings(size, 0, interval(other, size), 20)).training

    assert trained(cluster.mttf / times) <= trained(cluster.mttf) * (1 + 1e-9)


@given(CLUSTERS.filter(lambda c: c.fatal > 0), GROUPS, st.floats(0.01, 100.0))
def test_no_other_checkpoint_interval_trains_more(cluster, group, factor) -> None:
    size = group_of(cluster, group)
    chosen = interval(cluster, size)
    other = max(1, round(chosen * factor))
    if other * cluster.step < writing(cluster):
        return  # the store cannot

    def trained(steps: int) -> float:
        return split(cluster, Settings(size, 0, steps, 20)).training

    assert trained(other) <= trained(chosen) * (1 + 1e-9)


@given(st.floats(0.001, 50), st.integers(0, 60))
def test_the_shortage_falls_with_each_spare_and_never_below_what_the_mean_leaves(mean, held) -> None:
    assert shortage(mean, 0) == pytest.approx(mean)
    assert shortage(mean, held + 1) <= shortage(mean, held) * (1 + 1e-9)
    assert shortage(mean, held) >= max(0.0, mean - held) * (1 - 1e-9)


def test_the_only_node_of_a_job_takes_every_copy_with_it() -> None:
    node = Cluster(cards=8, per_node=8, state=GB, step=1.0, mttf=50_000.0)
    assert node.fatal == 1
    assert choose(node, CARD).advice[-1].value == "durable"


def test_a_loss_repeats_no_committed_step_if_other_groups_hold_the_state() -> None:
    steps = split(replace(LLAMA, constants=Constants(all_lost=0.0)), Settings(256, 0, 100, 20)).redone
    one_copy = split(replace(LLAMA, constants=Constants(all_lost=0.0)), Settings(16_384, 0, 100, 20)).redone
    assert one_copy > 10 * steps


def test_no_spare_stands_by_unless_the_size_has_to_be_held() -> None:
    assert spares(LLAMA, 0.0) == 0
    assert 0 < spares(LLAMA, 0.9) <= spares(LLAMA, 0.99)


def test_a_group_is_the_fewest_cards_that_hold_the_state_and_divide_job_and_node() -> None:
    assert smallest_group(LLAMA, CARD) == 256
    assert smallest_group(replace(LLAMA, state=CARD), CARD) == 1
    assert smallest_group(replace(LLAMA, state=3 * CARD), CARD) == 4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--cards", "8", "--state", "1000", "--step", "1"], "--state 1000 GB"),
        (["--cards", "64", "--state", "1", "--step", "1", "--group", "7"], "--group 7"),
        (["--cards", "64", "--state", "1", "--step", "1", "--full-size", "1"], "--full-size 1"),
        (["--cards", "64", "--state", "1", "--step", "1", "--mttf", "1"], "--mttf 1"),
        (["--cards", "64", "--state", "1", "--step", "1", "--set", "speed=1"], "--set speed=1"),
        (["--cards", "64", "--state", "1", "--step", "1", "--set", "repair=soon"], "--set repair=soon"),
        (["--cards", "64", "--state", "1", "--step", "1", "--set", "silent=2"], "--set silent=2"),
        (["--cards", "64", "--state", "1", "--step", "1", "-o", "name"], "--output name"),
        (["--cards", "64", "--state", "1"], "--step: missing"),
        (["--step", "1", "--state", "1"], "--cards: missing"),
        (["--cards", "64", "--state", "1", "--step", "1", "--from", "/nowhere"], "/nowhere"),
    ],
)
def test_an_impossible_request_names_the_option_and_its_value(options, named) -> None:
    result = CliRunner().invoke(app, ["plan", *options])
    assert result.exit_code == 2
    assert named in result.stderr


def test_the_plan_as_data_says_that_it_is_a_model_and_has_all_constants() -> None:
    result = CliRunner().invoke(
        app, ["plan", "--cards", "64", "--state", "16", "--step", "1", "--price", "2", "-o", "json"]
    )
    found = json.loads(result.stdout)
    assert "model" in found["note"]
    assert sum(found["paidTime"].values()) == pytest.approx(1)
    assert found["cost"]["day"] == 64 * 24 * 2
    assert found["constants"]["repair"] == 1800


def test_the_plan_for_people_gives_a_reason_for_each_setting() -> None:
    shown = text(LLAMA, choose(LLAMA, CARD, full_size=0.95), 2.5)
    assert shown.startswith("A model, not a measurement.")
    for setting in ("parallelism.shards: 256", "warmSpares: 1", "checkpoint.everySteps: ", "a day, of which"):
        assert setting in shown


PAGE = (Path(__file__).parents[4] / "docs/sizing.md").read_text()


@pytest.mark.parametrize("command", re.findall(r"^elastrain (plan --cards .*?)(?:  .*)?$", PAGE, re.M))
def test_the_page_shows_what_each_of_its_commands_prints(command: str) -> None:
    found = json.loads(CliRunner().invoke(app, [*command.split(), "-o", "json"]).stdout)
    assert f"{100 * found['paidTime']['training']:.3f} %" in PAGE
    assert f"{found['settings']['interval']} (" in PAGE
    assert f"{found['cost']['day']:,.0f}, {found['cost']['lostDay']:,.0f}" in PAGE


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1800, "30 min"), (84_853, "23.6 h"), (1.1e6, "12.7 days"), (2.25e9, "71.3 years"), (1e13, "3.17e+05 years")],
)
def test_a_duration_has_the_unit_that_a_person_would_take(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_plan_says_what_each_number_is_and_which_are_assumed() -> None:
    assert ABOUT.keys() == {"mttf", *asdict(Constants())}
    lab = ["plan", "--cards", "8", "--per-node", "1", "--state", "16", "--step", "0.5"]
    shown = CliRunner().invoke(app, lab).output
    assert "repair=1800       s until a node is replaced" in shown
    assert "assumed, not measured: silent, copy, store, repair, all_lost" in shown
    assert "one each hour (everySteps: 7200)" in " ".join(shown.split())
    assert "e-0" not in shown and "e+0" not in shown
    assert "one unplanned loss in 260 days" in shown
    assert "published of NCCL, not measured here: connect, per_rank" in shown
    own = replace(LLAMA, constants=replace(LLAMA.constants, connect=0.5))
    assert "not measured here: per_rank" in text(own, choose(own, CARD), None)
    assert "silent, copy, store, all_lost" in CliRunner().invoke(app, [*lab, "--set", "repair=600"]).output


@pytest.mark.parametrize("cards", [1024, 16384, 98304])
def test_the_page_shows_the_causes_by_scale(cards: int) -> None:
    cluster = replace(LLAMA, cards=cards)
    paid = choose(cluster, 0.6 * 192 * GB).split
    row = [paid.training, paid.rendezvous, paid.state, paid.redone, paid.checkpoint, paid.waiting]
    assert f"| {cards} | {' | '.join(f'{100 * part:.3f}' for part in row)} |" in PAGE


def test_each_constant_is_on_the_page() -> None:
    table = PAGE[PAGE.index("| constant (`--set") :]
    assert [field.name for field in fields(Constants) if f"`{field.name}`" not in table] == []


STATUS = {
    "acceleratorSeconds": {"training": 3.6e6},
    "generation": {"number": 3, "size": 2, "reason": "Lost"},
    "measuredSizes": [{"workers": 2, "nodes": 2, "stepSeconds": 0.4}],
    "restarts": {"infrastructure": 5},
    "lastRescale": {
        "from": 16, "to": 8, "reason": "Lost", "pauseSeconds": 0.5, "lostSteps": 0,
        "phases": {"detect": 0.3, "decide": 0.1, "connect": 0.08, "transfer": 0.0, "first_step": 0.2},
    },
}  # fmt: skip


def job(status: dict) -> ElasticTrainingJob:
    template = {"spec": {"containers": [{"name": "trainer", "image": "i", "command": ["python", "t.py"]}]}}
    return ElasticTrainingJob.model_validate(
        {
            "apiVersion": "elastrain.dev/v1alpha1", "kind": "ElasticTrainingJob", "metadata": {"name": "lm"},
            "spec": {"maxReplicas": 2, "nprocPerNode": 8, "template": template}, "status": status,
        }
    )  # fmt: skip


def test_a_job_s_own_measurements_replace_the_constants_and_an_option_replaces_them() -> None:
    found = measured(job(STATUS))
    assert (found.cards, found.step, found.mttf) == (16, 0.4, 200.0)
    made = constants(["decide=2"], found)
    assert (made.detect, made.decide) == (0.3, 2.0)
    assert made.repair == Constants().repair


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.08, 5.0])
def test_the_model_connects_as_the_job_did_at_its_size_and_slower_beyond(seconds: float) -> None:
    last = STATUS["lastRescale"]
    phases = last["phases"] | {"connect": seconds}
    made = constants([], measured(job(STATUS | {"lastRescale": last | {"phases": phases}})))
    assert made.connect + made.per_rank * last["to"] == pytest.approx(seconds)
    assert 0 <= made.per_rank <= Constants().per_rank and made.connect >= 0


def test_what_status_prints_as_json_is_read_by_the_plan() -> None:
    printed = json.dumps(document(job(STATUS)))
    result = CliRunner().invoke(app, ["plan", "--from", "-", "--state", "16", "-o", "json"], input=printed)
    found = json.loads(result.stdout)
    assert (found["constants"]["detect"], found["lossesPerDay"]) == (0.3, pytest.approx(16 * 24 / 200))


@pytest.mark.parametrize(
    ("printed", "named"),
    [
        ("{}", "--from -: not a job"),
        ("no", "elastrain status JOB -o json"),
        (json.dumps({**document(job(STATUS)), "status": None}), "job lm has no status"),
    ],
)
def test_what_is_no_job_is_refused_as_an_object_with_o_json(printed: str, named: str) -> None:
    result = CliRunner().invoke(app, ["plan", "--from", "-", "--state", "16", "-o", "json"], input=printed)
    assert result.exit_code == 2
    assert named in json.loads(result.stderr)["error"]


def test_a_planned_rescale_and_few_losses_replace_nothing() -> None:
    rescale = STATUS["lastRescale"] | {"phases": {"connect": 0.5, "transfer": 0.1}}
    found = measured(job(STATUS | {"lastRescale": rescale, "restarts": {"infrastructure": 4}}))
    assert constants([], found) == Constants()
    assert found.mttf is None


# ---- what the plan hangs on ------------------------------------------------------------------------------------------
@given(CLUSTERS, GROUPS)
def test_rarer_losses_and_shorter_pauses_train_more(cluster, group):
    settings = Settings(group or 1, 0, 10, 20)
    by_name = {effect.name: effect for effect in effects(cluster, settings)}
    assert by_name["mttf"].twice >= by_name["mttf"].half
    for name in ("detect", "connect", "per_rank", "first_step", "per_member"):
        assert by_name[name].half >= by_name[name].twice
    assert list(by_name.values()) == sorted(by_name.values(), key=lambda effect: (-effect.span, effect.name))


def test_an_effect_is_the_models_own_answer_for_the_other_number():
    settings = choose(LLAMA, CARD).settings
    by_name = {effect.name: effect for effect in effects(LLAMA, settings)}
    assert by_name.keys() == {"mttf", *(field.name for field in fields(Constants))}
    slower = replace(LLAMA, constants=replace(LLAMA.constants, per_rank=2 * LLAMA.constants.per_rank))
    assert by_name["per_rank"].twice == split(slower, settings).training
    assert by_name["mttf"].half == split(replace(LLAMA, mttf=25_000.0), settings).training


def test_a_part_of_the_losses_is_at_most_all_of_them():
    certain = replace(LLAMA, constants=replace(LLAMA.constants, all_lost=0.8))
    (effect,) = (e for e in effects(certain, choose(certain, CARD).settings) if e.name == "all_lost")
    assert effect.twice < effect.half


def test_the_numbers_that_decide_are_shown_and_a_number_of_zero_is_not():
    shown = text(LLAMA, choose(LLAMA, CARD), None)
    assert re.search(r"per_rank=0\.0027 +s more to connect, for each rank +9\d\.\d+ +9\d\.\d+$", shown, re.MULTILINE)
    sure = replace(LLAMA, constants=replace(LLAMA.constants, all_lost=0.0))
    assert "all_lost" not in {effect.name for effect in effects(sure, choose(sure, CARD).settings)}


def test_a_plan_of_a_billion_cards_ends() -> None:
    ran = CliRunner().invoke(app, ["plan", "--cards", "1000000000", "--state", "100000000000", "--step", "1"])
    assert "hold no copy" in " ".join(ran.output.split())
