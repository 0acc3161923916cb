"""A manifest's meaning on this machine."""

from __future__ import annotations

import sys

import yaml

from elastrain_cli.local.spec import expand, local_spec, worker_environment
from elastrain_resource.manifest import load, loads


def with_container(path, **fields):
    """The job in ``path`` with other fields in its container; None removes one."""
    document = yaml.safe_load(path.read_text())
    container = document["spec"]["template"]["spec"]["containers"][0]
    container.update(fields)
    for name in [k for k, v in fields.items() if v is None]:
        del container[name]
    return loads(yaml.safe_dump(document))


def test_variables_are_expanded_as_kubernetes_does():
    assert expand("$(A) $(B) $$(A) $A", {"A": "1"}) == "1 $(B) $(A) $A"


def test_the_command_is_that_of_the_container_with_its_variables(manifest, tmp_path):
    job = with_container(manifest(env={"N": "3"}), command=["python", "t.py"], args=["--n", "$(N)"])
    assert local_spec(job, tmp_path).command == ("python", "t.py", "--n", "3")


def test_max_replicas_are_desired_if_the_manifest_leaves_the_size_to_the_cluster(manifest, tmp_path):
    elastic, fixed = loads(manifest().read_text()), loads(manifest(replicas=2).read_text())
    assert elastic.spec.replicas is None
    assert local_spec(elastic, tmp_path).desired == elastic.spec.max_replicas
    assert local_spec(fixed, tmp_path).desired == 2


def test_a_variable_of_the_user_wins_over_the_manifest(manifest, tmp_path):
    job = with_container(manifest(env={"N": "3"}), command=["echo", "$(N)"])
    spec = local_spec(job, tmp_path, variables={"N": "4"})
    assert spec.command == ("echo", "4")
    assert spec.environment["N"] == "4"


def test_the_manifests_directory_is_used_with_a_note_if_the_images_does_not_exist(manifest, tmp_path):
    spec = local_spec(with_container(manifest(), workingDir="/no/such/directory"), tmp_path)
    assert spec.directory == tmp_path
    assert "workingDir: /no/such/directory does not exist here" in spec.notes[0]


def test_cluster_only_fields_are_ignored_with_a_note(manifest, tmp_path):
    field = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    spec = local_spec(with_container(manifest(), env=[{"name": "NODE", "valueFrom": field}]), tmp_path)
    assert "NODE" not in spec.environment
    assert "env[NODE]: valueFrom" in spec.notes[0]


def test_a_relative_checkpoint_path_is_relative_to_the_manifest(manifest, tmp_path):
    spec = local_spec(load(manifest(checkpoint={"path": "./saved"})), tmp_path)
    assert spec.ranks.checkpoint is not None
    assert spec.ranks.checkpoint.path == str(tmp_path / "saved")


def test_a_mount_point_that_this_machine_lacks_is_placed_in_the_state_directory(manifest, tmp_path):
    spec = local_spec(load(manifest(checkpoint={"path": "/no/such/mount"})), tmp_path, tmp_path / "state")
    assert spec.ranks.checkpoint is not None
    assert spec.ranks.checkpoint.path == str(tmp_path / "state/volumes/no/such/mount")


def test_a_directory_that_exists_here_is_used_as_it_is(manifest, tmp_path):
    spec = local_spec(load(manifest(checkpoint={"path": str(tmp_path)})), tmp_path)
    assert spec.ranks.checkpoint is not None
    assert spec.ranks.checkpoint.path == str(tmp_path)


def test_python_is_the_interpreter_that_runs_elastrain(manifest, tmp_path):
    environment = worker_environment(local_spec(load(manifest()), tmp_path), {"PATH": "/usr/bin"}, {})
    assert environment["PATH"].startswith(sys.executable.rpartition("/")[0])
    assert environment["OMP_NUM_THREADS"] == "1"
