"""Guards of APIs with rules of their own: coordinators, offsets, topics, transactions, settings, groups.

The shapes that several APIs share are in `guards.py`; which API has which guard is in `api_checks.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from millstream.config.table.mirror import LINK_PREFIX
from millstream.config.table.topic import MIRROR_PREFIX
from millstream.formats.model.access_control import CLUSTER_NAME, Principal
from millstream.formats.model.access_control import AclOperation as Op
from millstream.formats.model.access_control import AclResourceType as Kind
from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import NO_TOPIC_ID, TopicId
from millstream.node.metadata.topic_names import INTERNAL_TOPICS, is_topic_name
from millstream.node.security.guards import (
    ERRORS,
    Checks,
    Guard,
    Result,
    Row,
    changed,
    list_of,
    message_of,
    refusal,
    rows_of,
    topic_partitions,
    with_rows,
    without,
)
from millstream.node.server.long_requests import copied
from millstream.node.server.request import Context, Handler, Response
from millstream.node.server.service import Peer


def find_coordinator(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    kinds = {0: (Kind.GROUP, Op.DESCRIBE), 1: (Kind.TRANSACTIONAL_ID, Op.DESCRIBE)}
    if request.key_type not in kinds and request.key_type != 2:
        return handler(request, context)  # refused there: the type is not known

    def allows(key: str) -> bool:
        if request.key_type == 2:
            return checks.cluster(context.peer, Op.CLUSTER_ACTION)
        kind, operation = kinds[request.key_type]
        return checks.authorizer.allows(context.peer, operation, kind, key)

    code = ERRORS[kinds[request.key_type][0]] if request.key_type in kinds else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    nowhere = {"error_code": code, "error_message": message_of(code), "node_id": -1, "host": "", "port": -1}
    if context.version < 4:
        return handler(request, context) if allows(request.key) else nowhere
    allowed = [key for key in request.coordinator_keys if allows(key)]
    refused = [{"key": key, **nowhere} for key in dict.fromkeys(request.coordinator_keys) if key not in set(allowed)]
    if not allowed and refused:
        return {"coordinators": refused}
    return with_rows(handler(copied(request, coordinator_keys=allowed), context), "coordinators", refused)


def offset_commit(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    def refused(topic: Any, code: ErrorCode) -> Row:
        rows = [{"partition_index": row.partition_index, "error_code": code} for row in topic.partitions]
        return {"topic_id": topic.topic_id, "name": topic.name, "partitions": rows}

    if not checks.group(context.peer, Op.READ, request.group_id):
        return {"topics": [refused(topic, ErrorCode.GROUP_AUTHORIZATION_FAILED) for topic in request.topics]}
    return _committed_topics(checks, request, context, handler, refused)


def txn_offset_commit(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    def refused(topic: Any, code: ErrorCode) -> Row:
        rows = [{"partition_index": row.partition_index, "error_code": code} for row in topic.partitions]
        return {"name": topic.name, "partitions": rows}

    if not checks.transaction(context.peer, Op.WRITE, request.transactional_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return {"topics": [refused(topic, code) for topic in request.topics]}
    if not checks.group(context.peer, Op.READ, request.group_id):
        return {"topics": [refused(topic, ErrorCode.GROUP_AUTHORIZATION_FAILED) for topic in request.topics]}
    return _committed_topics(checks, request, context, handler, refused)


def _committed_topics(
    checks: Checks, request: Any, context: Context, handler: Handler, refused: Callable[[Any, ErrorCode], Row]
) -> Result:
    guard = rows_of(
        "topics",
        "topics",
        lambda given, peer, row: given.topic_row(peer, Op.READ, row),
        lambda row: refused(row, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    )
    return guard(checks, request, context, handler)


def offset_fetch(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    if context.version < 8:
        if not checks.group(context.peer, Op.DESCRIBE, request.group_id):
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            rows = [_unfetched(topic, code) for topic in request.topics or ()] if context.version < 2 else []
            return {"topics": rows, "error_code": code}
        return _fetched_offsets(checks, request, context, handler)
    allowed = [group for group in request.groups if checks.group(context.peer, Op.DESCRIBE, group.group_id)]
    refused = [
        {"group_id": group.group_id, "topics": [], "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
        for group in without(request.groups, allowed)
    ]
    if not allowed and refused:
        return {"groups": refused}
    missing: dict[str, list[Row]] = {}
    groups = []
    for group in allowed:
        if group.topics is not None:
            topics = [topic for topic in group.topics if checks.topic_row(context.peer, Op.DESCRIBE, topic)]
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            missing[group.group_id] = [_unfetched(topic, code) for topic in without(group.topics, topics)]
            groups.append(copied(group, topics=topics))
        else:
            groups.append(group)

    def shown(response: Response) -> Response:
        assert isinstance(response, Mapping)
        rows = []
        for group in response["groups"]:
            topics = [topic for topic in group["topics"] if _sees_topic(checks, context.peer, topic)]
            rows.append({**group, "topics": [*topics, *missing.get(group["group_id"], ())]})
        return {**response, "groups": [*rows, *refused]}

    return changed(handler(copied(request, groups=groups), context), shown)


def _fetched_offsets(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    missing: list[Row] = []
    if request.topics is not None:
        topics = [topic for topic in request.topics if checks.topic(context.peer, Op.DESCRIBE, topic.name)]
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        missing = [_unfetched(topic, code) for topic in without(request.topics, topics)]
        request = copied(request, topics=topics)

    def shown(response: Response) -> Response:
        assert isinstance(response, Mapping)
        topics = [topic for topic in response["topics"] if _sees_topic(checks, context.peer, topic)]
        return {**response, "topics": [*topics, *missing]}

    return changed(handler(request, context), shown)


def _sees_topic(checks: Checks, peer: Peer, row: Mapping[str, Any]) -> bool:
    topic_id: UUID = row.get("topic_id") or NO_TOPIC_ID
    name = row.get("name")
    if topic_id != NO_TOPIC_ID:
        topic = checks.image().topics_by_id.get(TopicId(topic_id))
        if topic is None:
            return True
        name = topic.name
    return not name or checks.sees(peer, Op.DESCRIBE, Kind.TOPIC, name)


def _unfetched(topic: Any, code: ErrorCode) -> Row:
    rows = [
        {"partition_index": index, "committed_offset": -1, "metadata": "", "error_code": code}
        for index in topic.partition_indexes
    ]
    row: Row = {"name": topic.name, "partitions": rows}
    if getattr(topic, "topic_id", NO_TOPIC_ID) != NO_TOPIC_ID:
        row["topic_id"] = topic.topic_id
    return row


def list_groups(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    """Who may describe the cluster sees all groups; others see those that they may describe."""
    if checks.sees(context.peer, Op.DESCRIBE, Kind.CLUSTER):
        return handler(request, context)
    only = list_of("groups", lambda given, peer, row: given.sees(peer, Op.DESCRIBE, Kind.GROUP, row["group_id"]))
    return only(checks, request, context, handler)


def create_topics(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    peer = context.peer
    # Brokers create internal topics and, for clients whose permission they have checked, other ones.
    may_all = checks.sees(peer, Op.CREATE, Kind.CLUSTER)
    is_broker = not context.is_forwarded and checks.sees(peer, Op.CLUSTER_ACTION, Kind.CLUSTER)
    if not (may_all or is_broker):
        allowed = [topic for topic in request.topics if checks.topic(peer, Op.CREATE, topic.name)]
    else:
        allowed = list(request.topics)
    if not is_broker and not checks.sees(peer, Op.ALTER_CONFIGS, Kind.CLUSTER):
        allowed = [each for each in allowed if not _has_mirror_settings(row.name for row in each.configs)]
    # A branch shows all records of its parent.
    allowed = [each for each in allowed if each.branch_of is None or checks.topic(peer, Op.READ, each.branch_of)]
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [
        {"name": name, "topic_id": NO_TOPIC_ID, "error_code": code, "error_message": "Authorization failed."}
        for name in dict.fromkeys(topic.name for topic in without(request.topics, allowed))
    ]
    if not allowed and refused:
        return {"topics": refused}

    def shown(response: Response) -> Response:
        assert isinstance(response, Mapping)
        rows = []
        for row in response["topics"]:
            if not row.get("error_code") and not checks.sees(peer, Op.DESCRIBE_CONFIGS, Kind.TOPIC, row["name"]):
                row = {
                    **row,
                    "topic_config_error_code": code,
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "configs": None,
                }
            rows.append(row)
        return {**response, "topics": [*rows, *refused]}

    return changed(handler(copied(request, topics=allowed), context), shown)


def delete_topics(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    message = message_of(code)
    if context.version < 6:
        guard = rows_of(
            "topic_names",
            "responses",
            lambda given, peer, name: given.topic(peer, Op.DELETE, name),
            lambda name: {"name": name, "error_code": code, "error_message": message},
        )
        return guard(checks, request, context, handler)

    def refused(row: Any) -> Row:
        error = {"topic_id": row.topic_id, "error_code": code, "error_message": message}
        if row.topic_id == NO_TOPIC_ID:
            return {"name": row.name, **error}
        name = checks.name_of(row)
        # A client that may not describe the topic does not learn its name.
        is_shown = name is not None and checks.sees(context.peer, Op.DESCRIBE, Kind.TOPIC, name)
        return {"name": name if is_shown else None, **error}

    guard = rows_of("topics", "responses", lambda given, peer, row: given.topic_row(peer, Op.DELETE, row), refused)
    return guard(checks, request, context, handler)


def init_producer_id(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    peer = context.peer
    if request.transactional_id is not None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        is_allowed = checks.transaction(peer, Op.WRITE, request.transactional_id)
        if is_allowed and getattr(request, "enable2_pc", False):
            is_allowed = checks.transaction(peer, Op.TWO_PHASE_COMMIT, request.transactional_id)
    else:
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        is_allowed = checks.authorizer.allows_some(peer, Op.WRITE, Kind.TOPIC) or checks.cluster(
            peer, Op.IDEMPOTENT_WRITE
        )
    return handler(request, context) if is_allowed else {"error_code": code}


def offset_for_leader_epoch(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    """Brokers (CLUSTER_ACTION) and consumers (DESCRIBE of the topic) use it."""
    if checks.sees(context.peer, Op.CLUSTER_ACTION, Kind.CLUSTER):
        return handler(request, context)
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    guard = topic_partitions(
        Op.DESCRIBE, lambda index: {"partition": index, "error_code": code}, name="topic", index="partition"
    )
    return guard(checks, request, context, handler)


def add_partitions_to_txn(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    if context.version >= 4:  # sent by brokers
        if checks.cluster(context.peer, Op.CLUSTER_ACTION):
            return handler(request, context)
        return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "results_by_transaction": []}
    topics = request.v3_and_below_topics

    def rows(codes: Callable[[str], ErrorCode]) -> Row:
        return {
            "results_by_transaction": [],
            "results_by_topic_v3_and_below": [
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {"partition_index": index, "partition_error_code": codes(topic.name)}
                        for index in topic.partitions
                    ],
                }
                for topic in topics
            ],
        }

    if not checks.transaction(context.peer, Op.WRITE, request.v3_and_below_transactional_id):
        return rows(lambda _: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    refused = {topic.name for topic in topics if not checks.topic(context.peer, Op.WRITE, topic.name)}
    if not refused:
        return handler(request, context)
    unknown = {topic.name for topic in topics if topic.name not in checks.image().topics}

    def code(name: str) -> ErrorCode:
        if name in refused:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name in unknown else ErrorCode.OPERATION_NOT_ATTEMPTED

    return rows(code)


def describe_transactions(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    ids = rows_of(
        "transactional_ids",
        "transaction_states",
        lambda given, peer, name: given.transaction(peer, Op.DESCRIBE, name),
        lambda name: {"transactional_id": name, "error_code": code, "transaction_state": ""},
    )

    def shown(response: Response) -> Response:
        assert isinstance(response, Mapping)
        rows = [
            {
                **row,
                "topics": [
                    topic
                    for topic in row.get("topics", ())
                    if checks.sees(context.peer, Op.DESCRIBE, Kind.TOPIC, topic["topic"])
                ],
            }
            for row in response["transaction_states"]
        ]
        return {**response, "transaction_states": rows}

    return changed(ids(checks, request, context, handler), shown)


_TOPIC_CONFIG, _GROUP_CONFIG = 2, 32


def _config_resource(resource: Any) -> tuple[Kind, str]:
    if resource.resource_type == _TOPIC_CONFIG:
        return Kind.TOPIC, resource.resource_name
    if resource.resource_type == _GROUP_CONFIG:
        return Kind.GROUP, resource.resource_name
    return Kind.CLUSTER, CLUSTER_NAME


def _may_mirror(checks: Checks, peer: Peer, row: Any) -> bool:
    """Settings of mirroring need more: a link creates topics, offsets and ACLs with the rights of the brokers; those of
    a mirror topic choose what is read from the source, and change the producer ids of the cluster."""
    names = [each.name for each in row.configs]
    if row.resource_type == _TOPIC_CONFIG:
        return not _has_mirror_settings(names) or checks.sees(peer, Op.ALTER_CONFIGS, Kind.CLUSTER)
    return not any(name.startswith(LINK_PREFIX) for name in names) or checks.sees(peer, Op.ALTER, Kind.CLUSTER)


def _has_mirror_settings(names: Iterable[str]) -> bool:
    return any(name.startswith(MIRROR_PREFIX) for name in names)


def configs(operation: Op, response_field: str) -> Guard:
    """Settings: of topics and groups by their names, of everything else by the cluster."""

    def allows(checks: Checks, peer: Peer, row: Any) -> bool:
        if not checks.authorizer.allows(peer, operation, *_config_resource(row)):
            return False
        return operation == Op.DESCRIBE_CONFIGS or _may_mirror(checks, peer, row)

    def refused(row: Any) -> Row:
        code = ERRORS[_config_resource(row)[0]]
        error = {"error_code": code, "error_message": message_of(code)}
        shown: Row = {"resource_type": row.resource_type, "resource_name": row.resource_name, **error}
        if operation == Op.DESCRIBE_CONFIGS:
            shown["configs"] = []
        return shown

    return rows_of("resources", response_field, allows, refused)


def group_heartbeat(api: str) -> Guard:
    """A member needs READ of its group, and DESCRIBE of the topics that it names."""

    def guard(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
        if not checks.group(context.peer, Op.READ, request.group_id):
            return refusal(api, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        for name in dict.fromkeys(request.subscribed_topic_names or ()):
            if not checks.topic(context.peer, Op.DESCRIBE, name):
                return refusal(api, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return handler(request, context)

    return guard


def streams_group_heartbeat(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    """As `group_heartbeat`, for all topics of the topology. The handler refuses a topology with invalid names."""
    if not checks.group(context.peer, Op.READ, request.group_id):
        return refusal("streams_group_heartbeat", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    names = {} if request.topology is None else dict.fromkeys(_topology_topics(request.topology.subtopologies))
    is_valid = not any(name in INTERNAL_TOPICS or not is_topic_name(name) for name in names)
    if is_valid and not all(checks.topic(context.peer, Op.DESCRIBE, name) for name in names):
        return refusal("streams_group_heartbeat", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return handler(request, context)


def _topology_topics(subtopologies: Iterable[Any]) -> Iterator[str]:
    """The topics that the subtopologies of a request or of a description name."""
    for row in subtopologies:
        yield from _field(row, "source_topics")
        yield from _field(row, "repartition_sink_topics")
        for field in ("repartition_source_topics", "state_changelog_topics"):
            yield from (_field(topic, "name") for topic in _field(row, field))


def _field(row: Any, name: str) -> Any:
    return row[name] if isinstance(row, Mapping) else getattr(row, name)


_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."
_HIDDEN_TOPOLOGY = "The described group uses topics that the client is not authorized to describe."


def described_groups(field: str) -> Guard:
    """Descriptions of groups: DESCRIBE of the group; its members are not shown to a client that may not describe their
    topics; `authorized_operations` if the request wants them."""
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    only_allowed = rows_of(
        field,
        "groups",
        lambda checks, peer, name: checks.group(peer, Op.DESCRIBE, name),
        lambda name: {"group_id": name, "error_code": code, "error_message": message_of(code)},
    )

    def guard(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
        def shown(response: Response) -> Response:
            assert isinstance(response, Mapping)
            return {
                **response,
                "groups": [_described(checks, request, context.peer, row) for row in response["groups"]],
            }

        return changed(only_allowed(checks, request, context, handler), shown)

    return guard


def _described(checks: Checks, request: Any, peer: Peer, row: Mapping[str, Any]) -> Mapping[str, Any]:
    if row.get("error_code"):
        return row
    if not all(checks.topic(peer, Op.DESCRIBE, name) for name in _topics_of(row)):
        return {
            "group_id": row["group_id"],
            "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "error_message": _HIDDEN_TOPICS if row.get("topology") is None else _HIDDEN_TOPOLOGY,
            "members": [],
        }
    if not request.include_authorized_operations:
        return row
    return {**row, "authorized_operations": checks.authorizer.operations(peer, Kind.GROUP, row["group_id"])}


def _topics_of(group: Mapping[str, Any]) -> dict[str, None]:
    """The topics that a description shows."""
    names: dict[str, None] = {}
    if group.get("topology") is not None:
        return dict.fromkeys(_topology_topics(group["topology"]["subtopologies"]))
    for member in group.get("members", ()):
        names |= dict.fromkeys(member.get("subscribed_topic_names") or ())
        for assignment in ("assignment", "target_assignment"):
            for topic in (member.get(assignment) or {}).get("topic_partitions", ()):
                names[topic["topic_name"]] = None
    return names


def offset_delete(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    if not checks.group(context.peer, Op.DELETE, request.group_id):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "topics": []}
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    guard = topic_partitions(Op.READ, lambda index: {"partition_index": index, "error_code": code})
    return guard(checks, request, context, handler)


def describe_share_group_offsets(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    group_code, topic_code = ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    allowed = [group for group in request.groups if checks.group(context.peer, Op.DESCRIBE, group.group_id)]
    refused = [
        {"group_id": group.group_id, "topics": [], "error_code": group_code, "error_message": message_of(group_code)}
        for group in without(request.groups, allowed)
    ]
    missing: dict[str, list[Row]] = {}
    groups = []
    error = {"error_code": topic_code, "error_message": message_of(topic_code)}
    for group in allowed:
        topics = group.topics
        if topics is not None:
            topics = [topic for topic in topics if checks.topic(context.peer, Op.DESCRIBE, topic.topic_name)]
            missing[group.group_id] = [
                {
                    "topic_name": topic.topic_name,
                    "partitions": [
                        {"partition_index": index, "start_offset": -1, "leader_epoch": 0, **error}
                        for index in topic.partitions
                    ],
                }
                for topic in without(group.topics, topics)
            ]
        groups.append(copied(group, topics=topics))
    if not groups:
        return {"groups": refused}

    def shown(response: Response) -> Response:
        assert isinstance(response, Mapping)
        rows = []
        for row in response["groups"]:
            topics = [
                topic
                for topic in row["topics"]
                if checks.sees(context.peer, Op.DESCRIBE, Kind.TOPIC, topic["topic_name"])
            ]
            rows.append({**row, "topics": [*topics, *missing.get(row["group_id"], ())]})
        return {**response, "groups": [*rows, *refused]}

    return changed(handler(copied(request, groups=groups), context), shown)


def create_delegation_token(checks: Checks, request: Any, context: Context, handler: Handler) -> Result:
    """A token for oneself needs no permission; one for another user needs CREATE_TOKENS of that user."""
    requester = context.peer.principal
    owner_kind = getattr(request, "owner_principal_type", None) or requester.kind
    owner_name = getattr(request, "owner_principal_name", None) or requester.name
    owner = Principal(owner_kind, owner_name)
    if owner == requester or checks.authorizer.allows(context.peer, Op.CREATE_TOKENS, Kind.USER, str(owner)):
        return handler(request, context)
    return {
        "error_code": ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        "principal_type": owner.kind,
        "principal_name": owner.name,
        "token_requester_principal_type": requester.kind,
        "token_requester_principal_name": requester.name,
        "token_id": "",
        "hmac": b"",
    }
