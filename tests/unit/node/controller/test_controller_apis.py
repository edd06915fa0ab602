"""Error responses of the controller: every API shows the error, in the response itself or in each row."""

from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.primitives import Cursor
from millstream.formats.protocol.schema import request_schema, response_schema
from millstream.node.controller.controller_apis import FORWARDED_APIS, error_response, has_error

_ACL = {
    "resource_type": 2,
    "resource_name": "a",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
_FILTER = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
_ROWS: dict[str, dict[str, object]] = {
    "create_topics": {"topics": [{"name": "a", "num_partitions": 1, "replication_factor": 1}]},
    "delete_topics": {"topics": [{"name": "a", "topic_id": UUID(int=0)}], "topic_names": ["a"]},
    "create_partitions": {"topics": [{"name": "a", "count": 2}]},
    "alter_configs": {"resources": [{"resource_type": 2, "resource_name": "a", "configs": []}]},
    "incremental_alter_configs": {"resources": [{"resource_type": 2, "resource_name": "a", "configs": []}]},
    "elect_leaders": {"topic_partitions": [{"topic": "a", "partitions": [0]}]},
    "update_features": {"feature_updates": [{"feature": "a", "max_version_level": 1}]},
    "create_acls": {"creations": [_ACL, _ACL]},
    "delete_acls": {"filters": [_FILTER, _FILTER]},
    "alter_user_scram_credentials": {"deletions": [{"name": "a", "mechanism": 1}]},
    "alter_client_quotas": {"entries": [{"entity": [{"entity_type": "user", "entity_name": "a"}], "ops": []}]},
}
"""Requests with rows; the other APIs have an error of the whole response."""


@pytest.mark.parametrize("api", FORWARDED_APIS)
def test_a_request_that_failed_as_a_whole_shows_its_error(api: str) -> None:
    schema = request_schema(api)
    for version in range(schema.versions.low, schema.versions.high + 1):
        body = bytearray()
        schema.write(body, _ROWS.get(api, {}), version)
        request = schema.read(Cursor(body), version)
        fields = error_response(api, request, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk failed"))
        encoded = bytearray()
        assert isinstance(fields, dict)
        response_schema(api).write(encoded, fields, version)
        response = response_schema(api).read(Cursor(encoded), version)
        assert has_error(response, ErrorCode.KAFKA_STORAGE_ERROR), f"{api}, version {version}: {response}"


@pytest.mark.parametrize(("api", "rows"), [("create_acls", "results"), ("delete_acls", "filter_results")])
def test_each_acl_has_its_error(api: str, rows: str) -> None:
    schema = request_schema(api)
    body = bytearray()
    schema.write(body, _ROWS[api], 2)
    error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk failed")
    fields = error_response(api, schema.read(Cursor(body), 2), error)
    assert isinstance(fields, dict) and [row["error_code"] for row in fields[rows]] == [error.code] * 2
