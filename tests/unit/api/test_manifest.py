"""Manifests: accepted ones, and the messages for invalid ones."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain_resource import podfields
from elastrain_resource.job import ElasticTrainingJob
from elastrain_resource.manifest import InvalidManifest, load, load_for_cluster, loads

VALID = """\
apiVersion: elastrain.dev/v1alpha1
kind: ElasticTrainingJob
metadata:
  name: digits
spec:
  minReplicas: 1
  maxReplicas: 4
  replicas: 2
  template:
    spec:
      containers:
        - name: trainer
          image: digits:1
          command: [python, train.py]
"""


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidManifest) as caught:
        loads(text)
    return caught.value.problems


def valid_but(old: str, new: str) -> str:
    assert VALID.count(old) == 1
    return VALID.replace(old, new)


# ---- accepted --------------------------------------------------------------------------------------------------------
def test_job_is_read_from_text_and_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(VALID)
    assert load(path) == load(str(path)) == loads(VALID)
    assert (loads(VALID).name, loads(VALID).spec.replicas) == ("digits", 2)


def test_template_is_kept_unchanged() -> None:
    template = loads(
        valid_but("image: digits:1", "image: digits:1\n          env: [{name: A, value: b}]")
    ).spec.template
    assert template == {
        "spec": {
            "containers": [
                {
                    "name": "trainer",
                    "image": "digits:1",
                    "env": [{"name": "A", "value": "b"}],
                    "command": ["python", "train.py"],
                }
            ]
        }
    }


def test_other_documents_are_ignored_if_one_is_a_job() -> None:
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n"
    assert loads(f"{claim}---\n{VALID}---\n") == loads(VALID)


def test_date_in_an_annotation_is_a_string_as_in_kubernetes() -> None:
    job = loads(valid_but("  name: digits", "  name: digits\n  annotations: {since: 2026-01-01}"))
    assert job.metadata["annotations"] == {"since": "2026-01-01"}


def test_merge_keys_work() -> None:
    text = valid_but(
        "command: [python, train.py]", "command: [python]\n          env: [&e {name: A, value: b}, {<<: *e, name: B}]"
    )
    assert loads(text).spec.template["spec"]["containers"][0]["env"][1] == {"name": "B", "value": "b"}


def test_job_survives_a_round_trip_through_json() -> None:
    job = loads(VALID)
    assert ElasticTrainingJob.model_validate_json(job.model_dump_json(by_alias=True, exclude_none=True)) == job


# ---- pod fields that the operator refuses ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("restartPolicy: Always", "containers[trainer].restartPolicy: Always: a worker whose script fails is replaced"),
        ("restartPolicyRules: [{action: Restart}]", "containers[trainer].restartPolicyRules: [{'action': 'Restart'}]"),
        ("lifecycle: {stopSignal: SIGKILL}", "containers[trainer].lifecycle: {'stopSignal': 'SIGKILL'}: `stopSignal`"),
    ],
)
def test_pod_field_that_the_operator_refuses_is_refused_for_a_cluster_and_not_for_this_machine(
    tmp_path: Path, line: str, problem: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(valid_but("command: [python, train.py]", f"command: [python, train.py]\n          {line}"))
    assert load(path).name == "digits"
    with pytest.raises(InvalidManifest) as refused:
        load_for_cluster(path)
    assert f"  spec.template.spec.{problem}" in str(refused.value)


def test_every_refused_field_of_the_table_is_refused_for_a_cluster(tmp_path: Path) -> None:
    """One table for the operator and the command: see test_pod_fields.py."""
    path = tmp_path / "job.yaml"
    refused = [name for name, field in podfields.POD.items() if field.treatment is podfields.Treatment.REFUSED]
    for name in refused:
        path.write_text(valid_but("containers:", f"{name}: [x]\n      containers:"))
        with pytest.raises(InvalidManifest, match=rf"spec\.template\.spec\.{name}: "):
            load_for_cluster(path)
    assert refused


# ---- one rule broken -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("minReplicas: 1", "minReplicas: 5", "spec.minReplicas: 5: must not be greater than maxReplicas (4)"),
        ("replicas: 2", "replicas: 9", "spec.replicas: 9: must be between minReplicas (1) and maxReplicas (4)"),
        (
            "replicas: 2",
            "warmSpares: 5",
            "spec.warmSpares: 5: must not be greater than maxReplicas (4)",
        ),
        ("minReplicas: 1", "minReplicas: 0", "spec.minReplicas: 0: must be at least 1"),
        ("maxReplicas: 4", "maxReplicas: 3000000000", "spec.maxReplicas: 3000000000: must be at most 2147483647"),
        ("replicas: 2", "replicas: '2'", 'spec.replicas: "2": must be a whole number'),
        ("replicas: 2", "replicas: 2.5", "spec.replicas: 2.5: must be a whole number"),
        ("replicas: 2", "replicas: true", "spec.replicas: true: must be a whole number"),
        ("replicas: 2", "suspend: 'yes'", 'spec.suspend: "yes": must be true or false'),
        ("replicas: 2", "cleanPodPolicy: Some",
         'spec.cleanPodPolicy: "Some": must be one of \'Running\', \'All\' or \'None\''),
        ("replicas: 2", "checkpoint: {path: data}",
         "spec.checkpoint.path: \"data\": must begin with '/' (or, in local mode, with '.'), or be a URL such as "
         "s3://bucket/prefix"),
        ("replicas: 2", "checkpoint: {path: 's3://key:secret@bucket/c'}",
         "spec.checkpoint.path: \"(hidden)\": must contain no credentials and no query: set them in the trainer "
         "container's environment, from a Secret"),
        ("replicas: 2", "checkpoint: {path: /c, archive: {path: bucket}}",
         "spec.checkpoint.archive.path: \"bucket\": must begin with '/' (or, in local mode, with '.'), or be a URL such"
         " as s3://bucket/prefix"),
        ("replicas: 2", "checkpoint: {}", "spec.checkpoint.path: missing: must be given"),
        ("replicas: 2", "checkpoint: 3", "spec.checkpoint: 3: must be a mapping"),
        ("replicas: 2", "maxReplica: 2", "spec.maxReplica: 2: unknown field; did you mean maxReplicas?"),
        ("replicas: 2", "checkpoint: {path: /c, every: 2}",
         "spec.checkpoint.every: 2: unknown field; did you mean everySteps?"),
        ("replicas: 2", "checkpoint: {path: /c, foo: 2}",
         "spec.checkpoint.foo: 2: unknown field; known are archive, everySeconds, everySteps, keep, path"),
        ("replicas: 2", "parallelism: {mesh: [{name: dp_shard, size: 1, sise: 2}]}",
         "spec.parallelism.mesh[0].sise: 2: unknown field; did you mean size?"),
        ("metadata:", "metdata: {}\nmetadata:", "metdata: {}: unknown field; did you mean metadata?"),
        ("kind: ElasticTrainingJob", "kind: Job", "kind: \"Job\": must be 'ElasticTrainingJob'"),
        ("v1alpha1", "v1", "apiVersion: \"elastrain.dev/v1\": must be 'elastrain.dev/v1alpha1'"),
        ("name: digits\n", "labels: {}\n", "metadata.name: missing: must be given"),
        ("- name: trainer\n          image: digits:1", "- name: trainer",
         "spec.template.spec.containers[0].image: missing: must be given"),
        ("replicas: 2", "template: {}", "line 9, column 3: key 'template' is given twice"),
    ],
)  # fmt: skip
def test_problem_names_field_value_and_rule(old: str, new: str, problem: str) -> None:
    text = VALID.replace(old, new, 1) if old == "replicas: 2" else valid_but(old, new)
    assert problems(text) == (problem,)


@pytest.mark.parametrize("name", ["Digits", "digits.a", "-digits", "digits-", "d" * 51])
def test_name_is_refused_if_no_pod_could_be_named_after_it(name: str) -> None:
    (problem,) = problems(valid_but("name: digits\n", f"name: {name}\n"))
    assert problem.startswith(f"metadata.name: \"{name}\": must be lower-case letters, digits and '-'")


def test_job_is_refused_if_the_container_that_trains_has_no_command() -> None:
    sidecar = "- {name: log, image: log:1, command: [log]}\n        - name: trainer"
    no_command = valid_but("- name: trainer", sidecar).replace("command: [python, train.py]", "command: []")
    (problem,) = problems(no_command)
    assert problem.startswith(
        'spec.template.spec.containers: "trainer": must have a command in the container named trainer'
    )


def test_job_is_refused_if_two_containers_have_one_name() -> None:
    text = valid_but("- name: trainer", "- {name: trainer, image: log:1}\n        - name: trainer")
    assert problems(text) == ('spec.template.spec.containers: "trainer": must be a different name for each container',)


# ---- many, or nothing to read ----------------------------------------------------------------------------------------
def test_every_problem_is_listed_one_a_line() -> None:
    text = valid_but("minReplicas: 1", "minReplicas: 5").replace("image: digits:1", "imag: digits:1") + "extra: 1\n"
    with pytest.raises(InvalidManifest) as caught:
        loads(text, source="job.yaml")
    assert str(caught.value) == (
        "job.yaml: not a valid ElasticTrainingJob\n"
        "  spec.minReplicas: 5: must not be greater than maxReplicas (4)\n"
        "  spec.template.spec.containers[0].image: missing: must be given\n"
        "  extra: 1: unknown field; known are apiVersion, kind, metadata, spec, status"
    )


def test_a_long_value_is_shortened() -> None:
    (problem,) = problems(valid_but("kind: ElasticTrainingJob", f"kind: {'x' * 1000}"))
    assert len(problem) < 120


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("---\n", "is empty"),
        ("3", "3: must be a mapping with apiVersion, kind, metadata and spec"),
        ("a: [", "line 1, column 5: while parsing a flow node, expected the node content, but found '<stream end>'"),
        ("a: *b", "line 1, column 4: found undefined alias 'b'"),
        ("1: 2", "line 1, column 1: key 1 is not a string"),
        ("a: &b [*b]", "has no JSON form, which Kubernetes requires: Circular reference detected"),
        (
            "a: .nan",
            "has no JSON form, which Kubernetes requires: Out of range float values are not JSON compliant: nan",
        ),
        ("a: 1\n---\nb: 1", "has 0 documents of kind ElasticTrainingJob: must have one"),
        (f"{VALID}---\n{VALID}", "has 2 documents of kind ElasticTrainingJob: must have one"),
    ],
)
def test_text_that_is_no_manifest_is_refused_with_its_position(text: str, problem: str) -> None:
    (found,) = problems(text)
    assert problem.startswith(found)  # newer Pythons also name the value that is not JSON


@given(st.text(max_size=40) | st.tuples(st.integers(0, len(VALID)), st.integers(0, 30), st.text(max_size=8)))
def test_every_invalid_manifest_raises_the_same_error(damage: str | tuple[int, int, str]) -> None:
    if isinstance(damage, str):
        text = damage
    else:
        start, length, instead = damage
        text = VALID[:start] + instead + VALID[start + length :]
    try:
        loads(text)
    except InvalidManifest as error:
        assert error.problems
        assert all(problem and "\n" not in problem for problem in error.problems)


def test_control_characters_are_refused() -> None:
    assert problems("a: \x00")[0].startswith("is not YAML: unacceptable character #x0000")


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match=r"absent\.yaml: no manifest\n  cannot be read: No such file"):
        load(tmp_path / "absent.yaml")
    (tmp_path / "binary").write_bytes(b"a: \xff")
    with pytest.raises(InvalidManifest, match="is not UTF-8 text: byte 3 is 0xff"):
        load(tmp_path / "binary")


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [" + ",".join("x" * 9) + "]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (bomb(8), "more than 100000 values"),
        (bomb(100), "more than 100000 values"),
        ("a: " + "[" * 20_000 + "]" * 20_000, "nested too deeply"),
        ("a: &a [*a]", "has no JSON form"),
        (VALID.replace("maxReplicas: 4", "maxReplicas: 4\n" + "".join(f"  x{n}: 1\n" for n in range(101))), "has 101"),
    ],
    ids=["aliases", "very many aliases", "depth", "a circle", "many errors"],
)
def test_a_hostile_manifest_is_a_message_at_a_bounded_cost(text: str, words: str) -> None:
    began = time.process_time()
    assert words in " ".join(problems(text))
    assert time.process_time() - began < 5


def test_no_more_of_a_file_is_read_than_an_api_server_takes() -> None:
    with pytest.raises(InvalidManifest, match="more than 3 MiB"):
        load("/dev/zero")


def test_an_alias_stands_for_its_value() -> None:
    anchored = VALID.replace("[python, train.py]", "&words [python, train.py]\n          args: *words")
    assert loads(anchored).spec.template["spec"]["containers"][0]["args"] == ["python", "train.py"]
