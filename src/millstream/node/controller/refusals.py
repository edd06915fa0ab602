"""How each API of the controller says that nothing could be done: the error in every place the answer has for one.

For a node that is not the controller, lost the lead while deciding, or could not reach the controller in time.
"""

from collections.abc import Callable
from typing import Any

from millstream.formats.model.errors import KafkaError
from millstream.formats.protocol.messages import response_schema
from millstream.formats.protocol.schema import Message
from millstream.node.server.request import Response


def refuse(api: str, request: Message, error: KafkaError) -> Response:
    """The answer to a request of which nothing was done."""
    fields = {"error_code": error.code, "error_message": error.message}
    refusal = _REFUSALS.get(api)
    if refusal is not None:
        return refusal(request, fields)
    known = response_schema(api).root.new().__slots__
    return {name: value for name, value in fields.items() if name in known}


def _create_topics(request: Message, error: dict[str, Any]) -> Response:
    return {"topics": [{"name": topic.name, **error} for topic in request.topics]}


def _delete_topics(request: Message, error: dict[str, Any]) -> Response:
    rows = [{"name": topic.name, "topic_id": topic.topic_id, **error} for topic in request.topics]
    return {"responses": rows + [{"name": name, **error} for name in request.topic_names]}


def _create_partitions(request: Message, error: dict[str, Any]) -> Response:
    return {"results": [{"name": topic.name, **error} for topic in request.topics]}


def _alter_configs(request: Message, error: dict[str, Any]) -> Response:
    rows = [{"resource_type": each.resource_type, "resource_name": each.resource_name} for each in request.resources]
    return {"responses": [{**row, **error} for row in rows]}


def _alter_reassignments(request: Message, error: dict[str, Any]) -> Response:
    return {**error, "responses": []}


def _elect_leaders(request: Message, error: dict[str, Any]) -> Response:
    """Version 0 has no top-level error, so that each partition gets it."""
    return {
        "error_code": error["error_code"],
        "replica_election_results": [
            {
                "topic": topic.topic,
                "partition_result": [{"partition_id": number, **error} for number in topic.partitions],
            }
            for topic in request.topic_partitions or ()
        ],
    }


def _update_features(request: Message, error: dict[str, Any]) -> Response:
    return {**error, "results": [{"feature": update.feature, **error} for update in request.feature_updates]}


_REFUSALS: dict[str, Callable[[Message, dict[str, Any]], Response]] = {
    "create_topics": _create_topics,
    "delete_topics": _delete_topics,
    "create_partitions": _create_partitions,
    "alter_configs": _alter_configs,
    "incremental_alter_configs": _alter_configs,
    "alter_partition_reassignments": _alter_reassignments,
    "elect_leaders": _elect_leaders,
    "update_features": _update_features,
}


def names_error(answer: Message, code: int) -> bool:
    """Whether the answer, or a row of it, carries the error."""
    fields = [getattr(answer, name) for name in answer.__slots__]
    if getattr(answer, "error_code", 0) == code:
        return True
    return any(
        isinstance(rows, list) and any(isinstance(row, Message) and names_error(row, code) for row in rows)
        for rows in fields
    )
