"""The CustomResourceDefinitions: of ``ElasticTrainingJob``, generated from the models in ``job.py``, and ``WorkerSet``.

``python -m elastrain.api.schema.crd`` prints it; ``--write`` updates ``crds/`` and the chart's copy under the current
directory (the repository's root); ``--check`` only compares, and exits with 1 naming what differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from elastrain.api import names, rules
from elastrain.api.job import ElasticTrainingJob
from elastrain.api.schema.structural import Schema, structural_schema

CRD_FILE = Path(f"crds/{names.PLURAL}.yaml")
SET_FILE = Path(f"crds/{names.SET_PLURAL}.yaml")
CHART_FILE = Path("charts/elastrain/templates/crd.yaml")

_HEADER = "# Generated from trainer/elastrain/api/job/ by `python -m elastrain.api.schema.crd --write`. Do not edit.\n"

# (name, type, JSON path, only in `-o wide`)
_COLUMNS = (
    ("Phase", "string", ".status.phase", False),
    ("Workers", "integer", ".status.readyReplicas", False),
    ("Desired", "integer", ".status.desiredReplicas", False),
    ("Generation", "integer", ".status.generation.number", False),
    ("Step", "integer", ".status.step", False),
    ("Reason", "string", '.status.conditions[?(@.type=="PodsReady")].reason', False),
    ("Min", "integer", ".spec.minReplicas", True),
    ("Max", "integer", ".spec.maxReplicas", True),
    ("Of", "integer", ".status.progress.of", True),
    ("Samples/s", "number", ".status.progress.samplesPerSecond", True),
    ("ETA", "string", ".status.progress.eta", True),
    ("Pause", "number", ".status.lastRescale.pauseSeconds", True),
    ("Failures", "integer", ".status.restarts.user", True),
    ("Lost", "integer", ".status.restarts.infrastructure", True),
    ("Preempted", "integer", ".status.restarts.preemption", True),
    ("Age", "date", ".metadata.creationTimestamp", False),
)
_COLUMN_HELP = {
    "Phase": "Pending, Running, Rescaling, Suspended, Succeeded or Failed",
    "Workers": "Workers in the generation in force",
    "Desired": "Desired number of workers",
    "Generation": "Number of the generation in force",
    "Step": "Committed steps",
    "Reason": "Why not all workers train: the reason of the condition PodsReady",
    "Of": "Committed steps at which the job finishes",
    "Samples/s": "Samples per second, at the rate of undisturbed steps",
    "ETA": "Time of the last step at that rate",
    "Pause": "Seconds that the last rescale took, from one committed step to the next",
    "Failures": "Failures of the training script, counted against backoffLimit",
    "Lost": "Workers lost to their node, to eviction or to a signal",
    "Preempted": "Workers preempted by the scheduler",
}


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition as plain data. Pure and deterministic."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names.PLURAL}.{names.GROUP}",
            "labels": {"app.kubernetes.io/name": "elastrain"},
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": ["all", "elastrain"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _root_schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
                }
            ],
        },
    }


def set_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of a job's set of workers, which the operator alone writes. Pure."""
    count = {"type": "integer", "format": "int32", "minimum": 0}
    number = {**count, "description": "Workers that the job has, or that come. Budgets of users count from it."}
    status = {**count, "description": "Never written: the job's status has it."}
    root = {
        "type": "object",
        "description": "The controller of a job's worker pods, for disruption budgets; the operator writes it.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {"type": "object", "required": ["replicas"], "properties": {"replicas": number}},
            "status": {"type": "object", "properties": {"replicas": status}},
        },
    }
    paths = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names.SET_PLURAL}.{names.GROUP}",
            "labels": {"app.kubernetes.io/name": "elastrain"},
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.SET_KIND,
                "listKind": f"{names.SET_KIND}List",
                "plural": names.SET_PLURAL,
                "singular": names.SET_KIND.lower(),
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": root},
                    "subresources": {"status": {}, "scale": paths},
                    "additionalPrinterColumns": [{"name": "Workers", "type": "integer", "jsonPath": ".spec.replicas"}],
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str, wide: bool) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if name in _COLUMN_HELP:
        column["description"] = _COLUMN_HELP[name]
    return column | ({"priority": 1} if wide else {})


def _root_schema() -> Schema:
    root = structural_schema(ElasticTrainingJob)
    fields = root["properties"]
    # The API server owns these three fields and refuses most schemas for them.
    fields["apiVersion"] = {"type": "string"}
    fields["kind"] = {"type": "string"}
    # 253 is Kubernetes' own limit; the schema needs it to bound the cost of the name rule.
    fields["metadata"] = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}}
    root["required"] = ["metadata", "spec"]
    root["x-kubernetes-validations"] = [
        rules.NAME.as_validation(".metadata.name", "self.metadata.name"),
        rules.SUSPEND_KEEPS_STATE.as_validation(".spec.suspend", "self.spec.suspend"),
    ]
    _add_spec_rules(fields["spec"])
    _relax_status(fields["status"])
    return root


def _add_spec_rules(spec: Schema) -> None:
    spec["x-kubernetes-validations"] = [
        *(rule.as_validation(f".{field}", f"self.{field}") for field, rule in rules.SIZES.items()),
        rules.NPROC_IS_FIXED.as_validation(".nprocPerNode", "self.nprocPerNode"),
        *(
            rule.as_validation(".parallelism", "has(self.parallelism) ? string(self.parallelism.shards) : '1'")
            for rule in (rules.SHARDS_FIT, rules.SHARDS_ARE_FIXED)
        ),
        *(
            rule.as_validation(".parallelism", "has(self.parallelism) ? self.parallelism.tensor : 1")
            for rule in (rules.TENSOR_FITS, rules.TENSOR_IS_FIXED)
        ),
        *(
            rule.as_validation(".parallelism", f"{rules.HAS_MESH} ? 'present' : 'absent'")
            for rule in (rules.MESH_FITS, rules.MESH_IS_FIXED)
        ),
        rules.MAX_REDONE_STEPS_IS_FIXED.as_validation(
            ".parallelism", "has(self.parallelism) ? self.parallelism.maxRedoneSteps : 20"
        ),
        rules.CHECKPOINT_PATH_IS_FIXED.as_validation(
            ".checkpoint", "has(self.checkpoint) ? self.checkpoint.path : 'absent'"
        ),
        rules.ARCHIVE_PATH_IS_FIXED.as_validation(
            ".checkpoint",
            "has(self.checkpoint) && has(self.checkpoint.archive) ? self.checkpoint.archive.path : 'absent'",
        ),
        rules.BATCH_BOUNDS.as_validation(".batch.max", "has(self.batch) ? self.batch.max : 0"),
        *(
            rule.as_validation(".batch", "has(self.batch) ? 'present' : 'absent'")
            for rule in (rules.BATCH_IS_OF_WHOLE_MODELS, rules.BATCH_IS_FIXED)
        ),
        *(
            rule.as_validation(".shares", "has(self.shares) ? self.shares : 'Equal'")
            for rule in (rules.SHARES_ARE_OF_REPLICAS, rules.SHARES_ARE_FIXED)
        ),
        *(
            rule.as_validation(".maxShare", "has(self.maxShare) ? string(self.maxShare) : 'absent'")
            for rule in (rules.MAX_SHARE_IS_OF_MEASURED, rules.MAX_SHARE_IS_FIXED)
        ),
        rules.DIVERGENCE_IS_FIXED.as_validation(".divergence", "has(self.divergence) ? 'present' : 'absent'"),
        rules.MANAGED_BY_IS_FIXED.as_validation(".managedBy", "has(self.managedBy) ? self.managedBy : 'absent'"),
    ]
    fields = spec["properties"]
    for place in (fields["checkpoint"], fields["checkpoint"]["properties"]["archive"]):
        place["x-kubernetes-validations"] = [
            rules.CHECKPOINT_PATH.as_validation(".path", "self.path"),
            rules.NO_CREDENTIALS_IN_PATH.as_validation(".path", "'hidden'"),
        ]
    _add_mesh_rules(fields["parallelism"])
    containers = fields["template"]["properties"]["spec"]["properties"]["containers"]
    # As in Kubernetes' own pod spec: names are unique, and server-side apply merges by name.
    containers |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    containers["x-kubernetes-validations"] = [
        rules.TRAINER_HAS_COMMAND.as_validation("", "self.exists(c, c.name == 'trainer') ? 'trainer' : self[0].name")
    ]


def _add_mesh_rules(parallelism: Schema) -> None:
    parallelism["x-kubernetes-validations"] = [
        rule.as_validation(".mesh", "has(self.mesh) ? 'present' : 'absent'")
        for rule in (rules.DIMENSIONS_ARE_UNIQUE, rules.MESH_HAS_SHARDS, rules.MESH_IS_BOUNDED, rules.MESH_IS_ALONE)
    ]
    parallelism["properties"]["mesh"]["items"]["x-kubernetes-validations"] = [
        rules.DIVIDES_IS_KNOWN.as_validation("", "self.name"),
        rules.SHARDS_DIVIDE_THE_BATCH.as_validation("", "has(self.divides) ? self.divides : 'absent'"),
    ]


def _relax_status(status: Schema) -> None:
    """Relax the status: an older or newer operator writes it, and the API server must neither refuse nor prune it.

    The status has one writer, so the API server need not track field ownership (``managedFields``). That was half of
    the object, and a third of the cost of writing a status.
    """
    status["x-kubernetes-map-type"] = "atomic"
    conditions = status["properties"]["conditions"]
    conditions |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    _relax(status)
    conditions["items"]["required"] = ["type", "status"]


def _relax(schema: Schema) -> None:
    schema.pop("required", None)
    schema.pop("default", None)
    if schema["type"] == "object" and "additionalProperties" not in schema:
        schema["x-kubernetes-preserve-unknown-fields"] = True
    for child in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
        _relax(child)


class _Dumper(yaml.SafeDumper):
    """Literal values in the given order, indented lists, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def to_yaml(document: dict[str, Any]) -> str:
    """The text of a CRD's file in ``crds/``."""
    return _HEADER + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def to_chart_template(*documents: dict[str, Any]) -> str:
    """The text of the chart's template: the same CRDs, installed if ``crds.install``, kept by ``helm uninstall`` if
    ``crds.keep``. (Helm never upgrades a chart's ``crds/`` folder; hence a template.)

    Raises ``ValueError`` if a CRD contains the start of a Helm template.
    """
    text = "---\n".join(to_yaml(document).removeprefix(_HEADER) for document in documents)
    if "{{" in text:
        raise ValueError("a CRD contains '{{', which Helm would evaluate: change the docstring it comes from")
    plain = "  labels:\n    app.kubernetes.io/name: elastrain\n"
    templated = (
        "  labels:\n"
        '    {{- include "elastrain.labels" . | nindent 4 }}\n'
        "  {{- if .Values.crds.keep }}\n"
        "  annotations:\n"
        "    helm.sh/resource-policy: keep\n"
        "  {{- end }}\n"
    )
    if text.count(plain) != len(documents):
        raise ValueError("a CRD's metadata.labels are not at the place that the chart's template expects")
    return f"{_HEADER}{{{{- if .Values.crds.install }}}}\n{text.replace(plain, templated)}{{{{- end }}}}\n"


def generated_files() -> dict[Path, str]:
    """The files of ``--write``: path under the repository's root -> text."""
    job, workers = crd(), set_crd()
    return {CRD_FILE: to_yaml(job), SET_FILE: to_yaml(workers), CHART_FILE: to_chart_template(job, workers)}


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m elastrain.api.schema.crd", description=__doc__)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--write", action="store_true", help="update the generated files under the current directory")
    mode.add_argument("--check", action="store_true", help="exit with 1 if a generated file is not up to date")
    args = parser.parse_args(argv)
    if not (args.write or args.check):
        sys.stdout.write(to_yaml(crd()))
        return 0
    stale = [path for path, text in generated_files().items() if not path.is_file() or path.read_text() != text]
    if args.write:
        for path in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(generated_files()[path])
            sys.stderr.write(f"wrote {path}\n")
        return 0
    for path in stale:
        sys.stderr.write(f"{path}: differs from the models; run `python -m elastrain.api.schema.crd --write`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
