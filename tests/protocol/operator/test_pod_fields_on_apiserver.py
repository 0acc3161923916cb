"""The table of the pod template's fields has each field that the API server's own schema has."""

from __future__ import annotations

import json

import pytest

from control_plane import ApiServer
from elastrain_resource import podfields as fields

pytestmark = pytest.mark.apiserver
META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
CORE = "io.k8s.api.core.v1"


def test_table_has_each_field_of_the_api_server_s_schema(apiserver: ApiServer):
    asked = apiserver.kubectl("get", "--raw", "/openapi/v3/api/v1")
    assert asked.returncode == 0, asked.stderr
    schemas = json.loads(asked.stdout)["components"]["schemas"]
    places = {META: fields.METADATA, f"{CORE}.PodSpec": fields.POD}
    containers = (fields.TRAINER, fields.BESIDE, fields.INIT)
    for schema, table in [*places.items(), *((f"{CORE}.Container", place) for place in containers)]:
        assert set(schemas[schema]["properties"]) - set(table) == set(), f"{schema}: decide what becomes of each"
