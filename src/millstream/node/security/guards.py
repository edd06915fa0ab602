"""Guards of APIs: they take the rows that a client may not use out of a request, and add them with errors to the
response.

A guard stands before a handler. It removes the rows that the client has no permission for, calls the handler with the
others, and adds rows with Kafka's error codes to the response. So handlers know nothing of ACLs, and without an
authorizer there is no guard at all. Which API has which guard is in `api_checks.py`. Produce, Fetch and ShareFetch,
whose sessions last longer than a request, are in `data_rights.py`; Metadata and other lists of the cluster, which are
encoded once for many clients, ask the authorizer themselves.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from millstream.formats.model.access_control import CLUSTER_NAME
from millstream.formats.model.access_control import AclOperation as Op
from millstream.formats.model.access_control import AclResourceType as Kind
from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import NO_TOPIC_ID, TopicId
from millstream.formats.protocol.schema import response_schema
from millstream.node.metadata.image import MetadataImage
from millstream.node.server.authorization import Authorizer
from millstream.node.server.long_requests import copied
from millstream.node.server.request import Context, Handler, Response
from millstream.node.server.service import Peer

Result = Response | Awaitable[Response]
Row = dict[str, Any]
ERRORS = {
    Kind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Kind.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Kind.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Kind.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Kind.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    Kind.USER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


class Checks:
    """The authorizer with the names of the image, as guards use it."""

    def __init__(self, authorizer: Authorizer, image: Callable[[], MetadataImage]) -> None:
        self.authorizer = authorizer
        self.image = image

    def cluster(self, peer: Peer, operation: Op) -> bool:
        return self.authorizer.allows(peer, operation, Kind.CLUSTER, CLUSTER_NAME)

    def topic(self, peer: Peer, operation: Op, name: str) -> bool:
        return self.authorizer.allows(peer, operation, Kind.TOPIC, name)

    def group(self, peer: Peer, operation: Op, name: str) -> bool:
        return self.authorizer.allows(peer, operation, Kind.GROUP, name)

    def transaction(self, peer: Peer, operation: Op, name: str) -> bool:
        return self.authorizer.allows(peer, operation, Kind.TRANSACTIONAL_ID, name)

    def sees(self, peer: Peer, operation: Op, kind: Kind, name: str = CLUSTER_NAME) -> bool:
        """Without a record of a refusal: for lists, and where another permission is enough."""
        return self.authorizer.sees(peer, operation, kind, name)

    def topic_row(self, peer: Peer, operation: Op, row: Any) -> bool:
        """For a row that names its topic by `name` or, in newer versions, by `topic_id`. If it has both, both are
        checked. An unknown id is allowed: the handler responds that it is unknown."""
        topic_id = getattr(row, "topic_id", NO_TOPIC_ID)
        if topic_id == NO_TOPIC_ID:
            return self.topic(peer, operation, row.name or "")
        names = [name for name in (row.name, self.name_of(row)) if name]
        return all(self.topic(peer, operation, name) for name in names)

    def name_of(self, row: Any) -> str | None:
        """The name of the topic with the row's id."""
        topic = self.image().topics_by_id.get(TopicId(row.topic_id))
        return None if topic is None else str(topic.name)


Guard = Callable[[Checks, Any, Context, Handler], Result]


def refusal(api: str, code: ErrorCode) -> Row:
    """A response with an error for the whole request."""
    known = response_schema(api).root.new().__slots__
    fields = {"error_code": code, "error_message": message_of(code)}
    return {name: value for name, value in fields.items() if name in known}


def message_of(code: ErrorCode) -> str:
    return {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "Not authorized to access group: Group authorization failed.",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    }.get(code, "The client is not authorized.")


def with_rows(given: Result, field: str, refused: Iterable[Mapping[str, Any]]) -> Result:
    """The handler's response, with more rows in one of its fields."""
    rows = list(refused)
    if not rows:
        return given

    def joined(response: Response) -> Response:
        assert isinstance(response, Mapping), "a guarded handler responds with fields"
        return {**response, field: [*response.get(field, ()), *rows]}

    return changed(given, joined)


def changed(given: Result, change: Callable[[Response], Response]) -> Result:
    """The handler's response after a change, now or later."""
    if not isinstance(given, Awaitable):
        return change(given)

    async def later(response: Awaitable[Response]) -> Response:
        return change(await response)

    return later(given)


# The shapes of guards


def needs_cluster(api: str, *operations: Op) -> Guard:
    """The whole request needs one of these operations on the cluster."""
    has_error = "error_code" in response_schema(api).root.new().__slots__
    assert has_error or api in _CLUSTER_REFUSALS, f"a client could not see that {api} was refused"

    def guard(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
        if any(checks.cluster(context.peer, operation) for operation in operations):
            return handler(request, context)
        refuse = _CLUSTER_REFUSALS.get(api)
        if refuse is not None:
            return refuse(request)
        return refusal(api, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    return guard


def needs_one(api: str, kind: Kind, operation: Op, field: str) -> Guard:
    """The whole request needs an operation on the resource that a field names."""

    def guard(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
        if checks.authorizer.allows(context.peer, operation, kind, getattr(request, field) or ""):
            return handler(request, context)
        return refusal(api, ERRORS[kind])

    return guard


def rows_of(
    field: str,
    response_field: str,
    allows: Callable[[Checks, Peer, Any], bool],
    refused: Callable[[Any], Row],
) -> Guard:
    """Each row of a list needs a permission of its own."""

    def guard(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
        rows = getattr(request, field)
        if not rows:
            return handler(request, context)
        allowed = [row for row in rows if allows(checks, context.peer, row)]
        if len(allowed) == len(rows):
            return handler(request, context)
        missing = without(rows, allowed)
        if not allowed:
            return {response_field: [refused(row) for row in missing]}
        given = handler(copied(request, **{field: allowed}), context)
        return with_rows(given, response_field, [refused(row) for row in missing])

    return guard


def without(rows: list[Any], allowed: list[Any]) -> list[Any]:
    kept = {id(row) for row in allowed} if allowed and not isinstance(allowed[0], str) else set(allowed)
    return [row for row in rows if (row if isinstance(row, str) else id(row)) not in kept]


def topic_partitions(
    operation: Op,
    row: Callable[[int], Row],
    *,
    field: str = "partitions",
    name: str = "name",
    index: str = "partition_index",
    response: str = "partitions",
) -> Guard:
    """Topics with partitions: a topic that is not allowed comes back with an error in each partition."""

    def allows(checks: Checks, peer: Peer, topic: Any) -> bool:
        return checks.topic(peer, operation, getattr(topic, name))

    def refused(topic: Any) -> Row:
        indexes = [each if isinstance(each, int) else getattr(each, index) for each in getattr(topic, field)]
        return {name: getattr(topic, name), response: [row(number) for number in indexes]}

    return rows_of("topics", "topics", allows, refused)


def list_of(field: str, allows: Callable[[Checks, Peer, Any], bool]) -> Guard:
    """A response with a list from which the rows that the client may not see are removed."""

    def guard(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
        def filtered(response: Response) -> Response:
            assert isinstance(response, Mapping)
            rows = [row for row in response.get(field, ()) if allows(checks, context.peer, row)]
            return {**response, field: rows}

        return changed(handler(request, context), filtered)

    return guard


def also(first: Guard, second: Guard) -> Guard:
    """Both guards, one before the other."""

    def guard(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
        return first(checks, request, context, lambda inner, same: second(checks, inner, same, handler))

    return guard


# Responses without a field for an error of the whole request


def _write_txn_markers(request: Any) -> Row:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": code} for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }


def _share_state(request: Any) -> Row:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    error = {"error_code": code, "error_message": message_of(code)}
    return {
        "results": [
            {
                "topic_id": topic.topic_id,
                "partitions": [{"partition": row.partition, **error} for row in topic.partitions],
            }
            for topic in request.topics
        ]
    }


def _elect_leaders(request: Any) -> Row:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    error = {"error_code": code, "error_message": message_of(code)}
    return {
        "error_code": code,
        "replica_election_results": [
            {"topic": topic.topic, "partition_result": [{"partition_id": index, **error} for index in topic.partitions]}
            for topic in request.topic_partitions or ()
        ],
    }


def _alter_log_dirs(request: Any) -> Row:
    rows: dict[str, list[Row]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            refused = [
                {"partition_index": index, "error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
                for index in topic.partitions
            ]
            rows.setdefault(topic.name, []).extend(refused)
    return {"results": [{"topic_name": name, "partitions": partitions} for name, partitions in rows.items()]}


def _create_acls(request: Any) -> Row:
    return {"results": [_error_row() for _ in request.creations]}


def _delete_acls(request: Any) -> Row:
    return {"filter_results": [{**_error_row(), "matching_acls": []} for _ in request.filters]}


def _error_row() -> Row:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return {"error_code": code, "error_message": message_of(code)}


def _alter_scram(request: Any) -> Row:
    names = dict.fromkeys([row.name for row in request.deletions] + [row.name for row in request.upsertions])
    return {"results": [{"user": name, **_error_row()} for name in names]}


def _describe_scram(request: Any) -> Row:
    return {**_error_row(), "results": [{"user": row.name, **_error_row()} for row in request.users or ()]}


def _alter_quotas(request: Any) -> Row:
    return {
        "entries": [
            {
                **_error_row(),
                "entity": [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity],
            }
            for entry in request.entries
        ]
    }


def _describe_quotas(request: Any) -> Row:
    return {**_error_row(), "entries": None}


def _update_features(request: Any) -> Row:
    return {**_error_row(), "results": [{"feature": each.feature, **_error_row()} for each in request.feature_updates]}


_CLUSTER_REFUSALS: Mapping[str, Callable[[Any], Row]] = {
    "write_txn_markers": _write_txn_markers,
    "initialize_share_group_state": _share_state,
    "read_share_group_state": _share_state,
    "write_share_group_state": _share_state,
    "delete_share_group_state": _share_state,
    "read_share_group_state_summary": _share_state,
    "elect_leaders": _elect_leaders,
    "alter_replica_log_dirs": _alter_log_dirs,
    "create_acls": _create_acls,
    "delete_acls": _delete_acls,
    "alter_user_scram_credentials": _alter_scram,
    "describe_user_scram_credentials": _describe_scram,
    "alter_client_quotas": _alter_quotas,
    "describe_client_quotas": _describe_quotas,
    "update_features": _update_features,
}
