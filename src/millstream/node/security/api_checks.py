"""What each API needs: one table, from which the checks are made and docs/authorization.md is generated.

The operations are those of Kafka ("Operations and Resources on Protocols", KafkaApis, ControllerApis). An API has a
guard, or its check is where the column `where` says: Produce, Fetch and ShareFetch in `data_rights.py`, APIs that list
the cluster in their handlers. `guarded` puts the guards before the handlers of a table of APIs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.access_control import AclOperation as Op
from millstream.formats.model.access_control import AclResourceType as Kind
from millstream.formats.model.errors import ErrorCode
from millstream.node.security import api_guards as of
from millstream.node.security.guards import (
    Checks,
    Guard,
    Row,
    also,
    list_of,
    message_of,
    needs_cluster,
    needs_one,
    rows_of,
    topic_partitions,
)
from millstream.node.server.request import Api, Context, Handler, Response


@dataclass(frozen=True, slots=True)
class Need:
    operation: Op
    resource: Kind
    note: str = ""


@dataclass(frozen=True, slots=True)
class ApiCheck:
    needs: tuple[Need, ...] = ()
    guard: Guard | None = None
    where: str = ""
    """Where the check is, if there is no guard. Fetch has both: a broker handles it without an `Api.handler`."""
    note: str = ""


_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
_IN_RIGHTS = "node/security/data_rights.py"
_IN_HANDLER = "the handler"


def _cluster(api: str, *operations: Op, note: str = "") -> ApiCheck:
    either = "or the next" if len(operations) > 1 else ""
    needs = [Need(operation, Kind.CLUSTER, note or either) for operation in operations]
    if len(needs) > 1:
        needs[-1] = Need(operations[-1], Kind.CLUSTER, note)
    return ApiCheck(tuple(needs), needs_cluster(api, *operations))


def _group(api: str, operation: Op) -> ApiCheck:
    return ApiCheck((Need(operation, Kind.GROUP),), needs_one(api, Kind.GROUP, operation, "group_id"))


def _transaction(api: str) -> Guard:
    return needs_one(api, Kind.TRANSACTIONAL_ID, Op.WRITE, "transactional_id")


def _error(index: str) -> Any:
    return lambda number: {index: number, "error_code": _TOPIC}


def _undeleted(number: int) -> Row:
    return {"partition_index": number, "low_watermark": -1, "error_code": _TOPIC}


def _unlisted(number: int) -> Row:
    return {"partition_index": number, "error_code": _TOPIC, "timestamp": -1, "offset": -1}


def _no_producers(number: int) -> Row:
    return {
        "partition_index": number,
        "error_code": _TOPIC,
        "error_message": message_of(_TOPIC),
        "active_producers": [],
    }


def _share_topics(operation: Op, refused: Any) -> Guard:
    return rows_of(
        "topics", "responses", lambda checks, peer, row: checks.topic(peer, operation, row.topic_name), refused
    )


def _unaltered(topic: Any) -> Row:
    error = {"error_code": _TOPIC, "error_message": message_of(_TOPIC)}
    rows = [{"partition_index": row.partition_index, **error} for row in topic.partitions]
    return {"topic_name": topic.topic_name, "partitions": rows}


def _kept_offsets(topic: Any) -> Row:
    return {"topic_name": topic.topic_name, "error_code": _TOPIC, "error_message": message_of(_TOPIC)}


def _unnamed(row: Any) -> Row:
    return {"name": row.name, "error_code": _TOPIC, "error_message": message_of(_TOPIC)}


_CREATE_PARTITIONS = rows_of(
    "topics", "results", lambda checks, peer, row: checks.topic(peer, Op.ALTER, row.name), _unnamed
)
_DELETE_GROUPS = rows_of(
    "groups_names",
    "results",
    lambda checks, peer, name: checks.group(peer, Op.DELETE, name),
    lambda name: {"group_id": name, "error_code": _GROUP},
)
_FREE = "no permission is needed"
_SETTINGS = (
    Need(Op.DESCRIBE_CONFIGS, Kind.TOPIC, "settings of topics"),
    Need(Op.DESCRIBE_CONFIGS, Kind.GROUP, "settings of groups"),
    Need(Op.DESCRIBE_CONFIGS, Kind.CLUSTER, "settings of brokers"),
)
_CHANGED_SETTINGS = tuple(Need(Op.ALTER_CONFIGS, need.resource, need.note) for need in _SETTINGS)
_MEMBER = (Need(Op.READ, Kind.GROUP), Need(Op.DESCRIBE, Kind.TOPIC, "the topics that the member subscribes to by name"))
_DESCRIBED_GROUP = (Need(Op.DESCRIBE, Kind.GROUP), Need(Op.DESCRIBE, Kind.TOPIC, "all topics of the members"))
_SHARE_READ = (Need(Op.READ, Kind.GROUP), Need(Op.READ, Kind.TOPIC))
_SEEN_TOPICS = "lists have only topics that the client may describe"

API_CHECKS: Mapping[str, ApiCheck] = {
    "produce": ApiCheck(
        (
            Need(Op.WRITE, Kind.TOPIC),
            Need(Op.WRITE, Kind.TRANSACTIONAL_ID, "with a transactional id"),
            Need(Op.CLUSTER_ACTION, Kind.CLUSTER, "internal topics"),
        ),
        where=_IN_RIGHTS,
    ),
    "fetch": ApiCheck(
        (Need(Op.READ, Kind.TOPIC, "consumers"), Need(Op.CLUSTER_ACTION, Kind.CLUSTER, "followers and controllers")),
        # For the listener of controllers, which has the metadata log alone: its Fetch is an API like others.
        guard=needs_cluster("fetch", Op.CLUSTER_ACTION),
        where=_IN_RIGHTS,
        note="checked at every fetch, also for the partitions that a session has already",
    ),
    "list_offsets": ApiCheck((Need(Op.DESCRIBE, Kind.TOPIC),), topic_partitions(Op.DESCRIBE, _unlisted)),
    "metadata": ApiCheck(
        (
            Need(Op.DESCRIBE, Kind.TOPIC),
            Need(Op.CREATE, Kind.CLUSTER, "a topic that is created automatically, or the next"),
            Need(Op.CREATE, Kind.TOPIC, "a topic that is created automatically"),
        ),
        where=_IN_HANDLER,
        note=_SEEN_TOPICS,
    ),
    "offset_commit": ApiCheck((Need(Op.READ, Kind.GROUP), Need(Op.READ, Kind.TOPIC)), of.offset_commit),
    "offset_fetch": ApiCheck((Need(Op.DESCRIBE, Kind.GROUP), Need(Op.DESCRIBE, Kind.TOPIC)), of.offset_fetch),
    "find_coordinator": ApiCheck(
        (
            Need(Op.DESCRIBE, Kind.GROUP, "coordinators of groups"),
            Need(Op.DESCRIBE, Kind.TRANSACTIONAL_ID, "coordinators of transactions"),
            Need(Op.CLUSTER_ACTION, Kind.CLUSTER, "coordinators of share state"),
        ),
        of.find_coordinator,
    ),
    "join_group": _group("join_group", Op.READ),
    "heartbeat": _group("heartbeat", Op.READ),
    "leave_group": _group("leave_group", Op.READ),
    "sync_group": _group("sync_group", Op.READ),
    "describe_groups": ApiCheck((Need(Op.DESCRIBE, Kind.GROUP),), of.described_groups("groups")),
    "list_groups": ApiCheck(
        (Need(Op.DESCRIBE, Kind.CLUSTER, "all groups, or the next"), Need(Op.DESCRIBE, Kind.GROUP, "each group shown")),
        of.list_groups,
    ),
    "sasl_handshake": ApiCheck(note=_FREE),
    "api_versions": ApiCheck(note=_FREE),
    "create_topics": ApiCheck(
        (
            Need(Op.CREATE, Kind.CLUSTER, "or the next"),
            Need(Op.CREATE, Kind.TOPIC),
            Need(Op.READ, Kind.TOPIC, "of the parent, for a branch"),
            Need(Op.DESCRIBE_CONFIGS, Kind.TOPIC, "to see the settings in the response"),
        ),
        of.create_topics,
    ),
    "delete_topics": ApiCheck((Need(Op.DELETE, Kind.TOPIC),), of.delete_topics),
    "delete_records": ApiCheck((Need(Op.DELETE, Kind.TOPIC),), topic_partitions(Op.DELETE, _undeleted)),
    "init_producer_id": ApiCheck(
        (
            Need(Op.WRITE, Kind.TRANSACTIONAL_ID, "with a transactional id"),
            Need(Op.TWO_PHASE_COMMIT, Kind.TRANSACTIONAL_ID, "for prepared transactions (KIP-939)"),
            Need(Op.WRITE, Kind.TOPIC, "of any topic, without a transactional id; or the next"),
            Need(Op.IDEMPOTENT_WRITE, Kind.CLUSTER, "without a transactional id"),
        ),
        of.init_producer_id,
    ),
    "offset_for_leader_epoch": ApiCheck(
        (Need(Op.CLUSTER_ACTION, Kind.CLUSTER, "or the next"), Need(Op.DESCRIBE, Kind.TOPIC)),
        of.offset_for_leader_epoch,
    ),
    "add_partitions_to_txn": ApiCheck(
        (
            Need(Op.WRITE, Kind.TRANSACTIONAL_ID),
            Need(Op.WRITE, Kind.TOPIC),
            Need(Op.CLUSTER_ACTION, Kind.CLUSTER, "from version 4 on, which brokers send"),
        ),
        of.add_partitions_to_txn,
    ),
    "add_offsets_to_txn": ApiCheck(
        (Need(Op.WRITE, Kind.TRANSACTIONAL_ID), Need(Op.READ, Kind.GROUP)),
        also(
            _transaction("add_offsets_to_txn"),
            needs_one("add_offsets_to_txn", Kind.GROUP, Op.READ, "group_id"),
        ),
    ),
    "end_txn": ApiCheck((Need(Op.WRITE, Kind.TRANSACTIONAL_ID),), _transaction("end_txn")),
    "write_txn_markers": _cluster("write_txn_markers", Op.ALTER, Op.CLUSTER_ACTION),
    "txn_offset_commit": ApiCheck(
        (Need(Op.WRITE, Kind.TRANSACTIONAL_ID), Need(Op.READ, Kind.GROUP), Need(Op.READ, Kind.TOPIC)),
        of.txn_offset_commit,
    ),
    "describe_acls": _cluster("describe_acls", Op.DESCRIBE),
    "create_acls": _cluster("create_acls", Op.ALTER),
    "delete_acls": _cluster("delete_acls", Op.ALTER),
    "describe_configs": ApiCheck(_SETTINGS, of.configs(Op.DESCRIBE_CONFIGS, "results")),
    "alter_configs": ApiCheck(_CHANGED_SETTINGS, of.configs(Op.ALTER_CONFIGS, "responses")),
    "incremental_alter_configs": ApiCheck(_CHANGED_SETTINGS, of.configs(Op.ALTER_CONFIGS, "responses")),
    "alter_replica_log_dirs": _cluster("alter_replica_log_dirs", Op.ALTER),
    "describe_log_dirs": _cluster("describe_log_dirs", Op.DESCRIBE),
    "sasl_authenticate": ApiCheck(note=_FREE),
    "create_partitions": ApiCheck((Need(Op.ALTER, Kind.TOPIC),), _CREATE_PARTITIONS),
    "create_delegation_token": ApiCheck(
        (Need(Op.CREATE_TOKENS, Kind.USER, "a token for another user"),), of.create_delegation_token
    ),
    "renew_delegation_token": ApiCheck(where=_IN_HANDLER, note="the owner, or a renewer that the token names"),
    "expire_delegation_token": ApiCheck(where=_IN_HANDLER, note="the owner, or a renewer that the token names"),
    "describe_delegation_token": ApiCheck(
        (
            Need(Op.DESCRIBE, Kind.DELEGATION_TOKEN, "tokens of others, or the next"),
            Need(Op.DESCRIBE_TOKENS, Kind.USER, "tokens of this user"),
        ),
        where=_IN_HANDLER,
    ),
    "delete_groups": ApiCheck((Need(Op.DELETE, Kind.GROUP),), _DELETE_GROUPS),
    "elect_leaders": _cluster("elect_leaders", Op.ALTER),
    "alter_partition_reassignments": _cluster("alter_partition_reassignments", Op.ALTER),
    "list_partition_reassignments": _cluster("list_partition_reassignments", Op.DESCRIBE),
    "offset_delete": ApiCheck((Need(Op.DELETE, Kind.GROUP), Need(Op.READ, Kind.TOPIC)), of.offset_delete),
    "describe_client_quotas": _cluster("describe_client_quotas", Op.DESCRIBE_CONFIGS),
    "alter_client_quotas": _cluster("alter_client_quotas", Op.ALTER_CONFIGS),
    "describe_user_scram_credentials": _cluster("describe_user_scram_credentials", Op.DESCRIBE),
    "alter_user_scram_credentials": _cluster("alter_user_scram_credentials", Op.ALTER),
    "vote": _cluster("vote", Op.CLUSTER_ACTION),
    "begin_quorum_epoch": _cluster("begin_quorum_epoch", Op.CLUSTER_ACTION),
    "end_quorum_epoch": _cluster("end_quorum_epoch", Op.CLUSTER_ACTION),
    "describe_quorum": _cluster("describe_quorum", Op.DESCRIBE),
    "alter_partition": _cluster("alter_partition", Op.CLUSTER_ACTION),
    "update_features": _cluster("update_features", Op.ALTER),
    "envelope": _cluster("envelope", Op.CLUSTER_ACTION),
    "fetch_snapshot": _cluster("fetch_snapshot", Op.CLUSTER_ACTION),
    "describe_cluster": ApiCheck(where=_IN_HANDLER, note="authorized_operations of the cluster, if wanted"),
    "describe_producers": ApiCheck(
        (Need(Op.READ, Kind.TOPIC),), topic_partitions(Op.READ, _no_producers, field="partition_indexes")
    ),
    "broker_registration": _cluster("broker_registration", Op.CLUSTER_ACTION),
    "broker_heartbeat": _cluster("broker_heartbeat", Op.CLUSTER_ACTION),
    "unregister_broker": _cluster("unregister_broker", Op.ALTER),
    "describe_transactions": ApiCheck(
        (
            Need(Op.DESCRIBE, Kind.TRANSACTIONAL_ID),
            Need(Op.DESCRIBE, Kind.TOPIC, "each topic shown"),
        ),
        of.describe_transactions,
    ),
    "list_transactions": ApiCheck(
        (Need(Op.DESCRIBE, Kind.TRANSACTIONAL_ID, "each transaction shown"),),
        list_of(
            "transaction_states",
            lambda checks, peer, row: checks.sees(peer, Op.DESCRIBE, Kind.TRANSACTIONAL_ID, row["transactional_id"]),
        ),
    ),
    "allocate_producer_ids": _cluster("allocate_producer_ids", Op.CLUSTER_ACTION),
    "consumer_group_heartbeat": ApiCheck(_MEMBER, of.group_heartbeat("consumer_group_heartbeat")),
    "consumer_group_describe": ApiCheck(_DESCRIBED_GROUP, of.described_groups("group_ids")),
    "controller_registration": _cluster("controller_registration", Op.CLUSTER_ACTION),
    "get_telemetry_subscriptions": ApiCheck(note=_FREE),
    "push_telemetry": ApiCheck(note=_FREE),
    "assign_replicas_to_dirs": _cluster("assign_replicas_to_dirs", Op.CLUSTER_ACTION),
    "list_config_resources": _cluster("list_config_resources", Op.DESCRIBE_CONFIGS),
    "describe_topic_partitions": ApiCheck((Need(Op.DESCRIBE, Kind.TOPIC),), where=_IN_HANDLER, note=_SEEN_TOPICS),
    "report_audit_events": ApiCheck(
        where=_IN_HANDLER, note="only the principals of millstream.audit.gateways (an API of Millstream)"
    ),
    "share_group_heartbeat": ApiCheck(_MEMBER, of.group_heartbeat("share_group_heartbeat")),
    "share_group_describe": ApiCheck(_DESCRIBED_GROUP, of.described_groups("group_ids")),
    "streams_group_heartbeat": ApiCheck(
        (
            Need(Op.READ, Kind.GROUP),
            Need(Op.DESCRIBE, Kind.TOPIC, "all topics of the topology"),
            Need(Op.CREATE, Kind.CLUSTER, "or CREATE of each internal topic, if they do not exist"),
        ),
        of.streams_group_heartbeat,
        note="CREATE in the handler: without it the response has the status MISSING_INTERNAL_TOPICS",
    ),
    "streams_group_describe": ApiCheck(
        (Need(Op.DESCRIBE, Kind.GROUP), Need(Op.DESCRIBE, Kind.TOPIC, "all topics of the topology")),
        of.described_groups("group_ids"),
    ),
    "share_fetch": ApiCheck(
        _SHARE_READ,
        needs_one("share_fetch", Kind.GROUP, Op.READ, "group_id"),
        note=f"topics in {_IN_RIGHTS}, at every fetch of a session",
    ),
    "share_acknowledge": ApiCheck(
        _SHARE_READ,
        needs_one("share_acknowledge", Kind.GROUP, Op.READ, "group_id"),
        note=f"topics in {_IN_RIGHTS}, at every fetch of a session",
    ),
    "add_raft_voter": _cluster("add_raft_voter", Op.ALTER),
    "remove_raft_voter": _cluster("remove_raft_voter", Op.ALTER),
    "update_raft_voter": _cluster("update_raft_voter", Op.CLUSTER_ACTION),
    "initialize_share_group_state": _cluster("initialize_share_group_state", Op.CLUSTER_ACTION),
    "read_share_group_state": _cluster("read_share_group_state", Op.CLUSTER_ACTION),
    "write_share_group_state": _cluster("write_share_group_state", Op.CLUSTER_ACTION),
    "delete_share_group_state": _cluster("delete_share_group_state", Op.CLUSTER_ACTION),
    "read_share_group_state_summary": _cluster("read_share_group_state_summary", Op.CLUSTER_ACTION),
    "describe_share_group_offsets": ApiCheck(
        (Need(Op.DESCRIBE, Kind.GROUP), Need(Op.DESCRIBE, Kind.TOPIC)), of.describe_share_group_offsets
    ),
    "alter_share_group_offsets": ApiCheck(
        _SHARE_READ,
        also(
            needs_one("alter_share_group_offsets", Kind.GROUP, Op.READ, "group_id"),
            _share_topics(Op.READ, _unaltered),
        ),
    ),
    "delete_share_group_offsets": ApiCheck(
        (Need(Op.DELETE, Kind.GROUP), Need(Op.READ, Kind.TOPIC)),
        also(
            needs_one("delete_share_group_offsets", Kind.GROUP, Op.DELETE, "group_id"),
            _share_topics(Op.READ, _kept_offsets),
        ),
    ),
}


def guard_handler(name: str, handler: Handler, checks: Checks) -> Handler:
    """The handler of an API behind its guard. An API without a row is a bug, and raises an error at the start."""
    guard = API_CHECKS[name].guard
    if guard is None:
        return handler

    def guarded_handler(request: Any, context: Context) -> "Response | Any":
        return guard(checks, request, context, handler)

    return guarded_handler


def guarded(apis: Iterable[Api], checks: Checks | None) -> list[Api]:
    """The APIs behind their guards. Forwarded ones (`with_frame`) are checked by the controller."""
    if checks is None:
        return list(apis)
    return [
        each
        if each.handler is None or each.with_frame
        else replace(each, handler=guard_handler(each.name, each.handler, checks))
        for each in apis
    ]
