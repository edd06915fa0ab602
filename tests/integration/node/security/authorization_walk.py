"""A walk over all APIs: what a client without any permission gets, and one that has exactly what is needed.

Each step is one request. `python -m tests.integration.node.security.authorization_walk` records the responses of Apache
Kafka to `authorization_walk.golden`. What counts in a response are its error codes, with their place: `{"topics[].
error_code": [29]}`. For the client with permissions only the codes of missing permissions count: whether a group or a
transaction is there is another matter.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from millstream.formats.model.access_control import AclOperation as Op
from millstream.formats.model.access_control import AclResourceType as Kind
from millstream.formats.protocol.schema import Message, request_schema
from millstream.formats.records.record import Record, build_batch
from millstream.raw_client import Cluster
from tests.integration.node.security.secured_broker import Secured, secured_kafka
from tests.waiting import until

GOLDEN = Path(__file__).with_name("authorization_walk.golden")
TOPIC, GROUP, TRANSACTION, CLUSTER = "walk-topic", "walk-group", "walk-transaction", "kafka-cluster"
REFUSALS = {29: "TOPIC", 30: "GROUP", 31: "CLUSTER", 53: "TRANSACTIONAL_ID", 65: "DELEGATION_TOKEN"}
Permission = tuple[Kind, str, Op]
_T: Callable[[Op], Permission] = lambda operation: (Kind.TOPIC, TOPIC, operation)  # noqa: E731
_G: Callable[[Op], Permission] = lambda operation: (Kind.GROUP, GROUP, operation)  # noqa: E731
_X: Callable[[Op], Permission] = lambda operation: (Kind.TRANSACTIONAL_ID, TRANSACTION, operation)  # noqa: E731
_C: Callable[[Op], Permission] = lambda operation: (Kind.CLUSTER, CLUSTER, operation)  # noqa: E731
Fields = Callable[[UUID], dict[str, Any]]


@dataclass(frozen=True)
class Step:
    api: str
    fields: Fields
    needs: tuple[Permission, ...] = ()
    at_most: int | None = None
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.api} {self.note}".strip()


def _step(api: str, *needs: Permission, at_most: int | None = None, note: str = "", **fields: Any) -> Step:
    return Step(api, lambda _: fields, needs, at_most, note)


def _rows(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": TOPIC, "partitions": [{"partition_index": 0, **fields}]}]


_COMMITTED = {"committed_offset": 1, "committed_metadata": ""}
_STATE = {"state_epoch": 0, "leader_epoch": 0, "start_offset": 0, "state_batches": []}
_TOPOLOGY = {
    "epoch": 0,
    "subtopologies": [
        {
            "subtopology_id": "0",
            "source_topics": [TOPIC],
            "source_topic_regex": [],
            "state_changelog_topics": [],
            "repartition_sink_topics": [],
            "repartition_source_topics": [],
            "copartition_groups": [],
        }
    ],
}
_TOPIC_CONFIG = {"resource_type": 2, "resource_name": TOPIC}
_BROKER_CONFIG = {"resource_type": 4, "resource_name": "1"}
_GROUP_CONFIG = {"resource_type": 32, "resource_name": GROUP}
_FILTER: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": "no-such-acl",
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
_ACL = {
    "resource_type": 2,
    "resource_name": "x",
    "principal": "User:x",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
_SHARE_FETCH = {
    "group_id": GROUP,
    "member_id": "m",
    "max_wait_ms": 0,
    "min_bytes": 0,
    "max_records": 1,
    "batch_size": 1,
}


def _share_state(api: str, **row: Any) -> Step:
    def fields(topic_id: UUID) -> dict[str, Any]:
        return {"group_id": GROUP, "topics": [{"topic_id": topic_id, "partitions": [{"partition": 0, **row}]}]}

    return Step(api, fields, (_C(Op.CLUSTER_ACTION),))


def _produce(_: UUID, transactional_id: str | None = None) -> dict[str, Any]:
    batch = bytearray(build_batch([Record(None, b"v")]))
    if transactional_id is not None:
        batch = bytearray(
            build_batch([Record(None, b"v")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        )
    data = [{"index": 0, "records": bytes(batch)}]
    topics = [{"name": TOPIC, "partition_data": data}]
    return {"transactional_id": transactional_id, "acks": 1, "timeout_ms": 5000, "topic_data": topics}


def _fetch(topic_id: UUID, replica: int = -1) -> dict[str, Any]:
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    state = {"replica_id": replica, "replica_epoch": -1}
    topics = [{"topic_id": topic_id, "topic": TOPIC, "partitions": [row]}]
    return {"max_wait_ms": 0, "min_bytes": 0, "topics": topics, "replica_state": state, "replica_id": replica}


STEPS = (
    Step("produce", _produce, (_T(Op.WRITE),), at_most=12),
    Step("produce", lambda _: _produce(_, TRANSACTION), (_T(Op.WRITE), _X(Op.WRITE)), at_most=12, note="transactional"),
    Step("fetch", _fetch, (_T(Op.READ),), at_most=12, note="by name"),
    Step("fetch", _fetch, (_T(Op.READ),), note="by id"),
    Step("fetch", lambda _: _fetch(_, 1), (_C(Op.CLUSTER_ACTION),), at_most=12, note="as a replica"),
    _step("list_offsets", _T(Op.DESCRIBE), replica_id=-1, topics=_rows(timestamp=-1)),
    _step("metadata", _T(Op.DESCRIBE), note="by name", topics=[{"name": TOPIC}]),
    _step("metadata", note="of a topic that is not there", topics=[{"name": "walk-missing"}]),
    Step("metadata", lambda at: {"topics": [{"name": None, "topic_id": at}]}, (_T(Op.DESCRIBE),), note="by id"),
    _step("metadata", _T(Op.DESCRIBE), note="all", topics=None),
    Step(
        "offset_commit",
        lambda at: {
            "group_id": GROUP,
            "topics": [{"topic_id": at, "partitions": [{"partition_index": 0, **_COMMITTED}]}],
        },
        (_G(Op.READ), _T(Op.READ)),
        note="by id",
    ),
    _step("offset_commit", _G(Op.READ), _T(Op.READ), at_most=9, group_id=GROUP, topics=_rows(**_COMMITTED)),
    _step(
        "offset_fetch",
        _G(Op.DESCRIBE),
        _T(Op.DESCRIBE),
        at_most=9,
        groups=[{"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}],
    ),
    _step("offset_fetch", _G(Op.DESCRIBE), at_most=9, note="all topics", groups=[{"group_id": GROUP, "topics": None}]),
    _step("find_coordinator", _G(Op.DESCRIBE), note="group", key_type=0, coordinator_keys=[GROUP]),
    _step("find_coordinator", _X(Op.DESCRIBE), note="transaction", key_type=1, coordinator_keys=[TRANSACTION]),
    Step(
        "find_coordinator",
        lambda at: {"key_type": 2, "coordinator_keys": [f"{GROUP}:AAAAAAAAAAAAAAAAAAAAAQ:0"]},
        (_C(Op.CLUSTER_ACTION),),
        note="share state",
    ),
    _step(
        "join_group",
        _G(Op.READ),
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    ),
    _step("heartbeat", _G(Op.READ), group_id=GROUP, generation_id=1, member_id="m"),
    _step("leave_group", _G(Op.READ), group_id=GROUP, members=[{"member_id": "m"}]),
    _step(
        "sync_group",
        _G(Op.READ),
        group_id=GROUP,
        generation_id=1,
        member_id="m",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
    ),
    _step("describe_groups", _G(Op.DESCRIBE), groups=[GROUP], include_authorized_operations=True),
    _step("list_groups", _G(Op.DESCRIBE), states_filter=[], types_filter=[]),
    _step(
        "create_topics",
        (Kind.TOPIC, "walk-new", Op.CREATE),
        (Kind.TOPIC, "walk-new", Op.DESCRIBE_CONFIGS),
        topics=[{"name": "walk-new", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}],
        timeout_ms=10_000,
        validate_only=True,
    ),
    _step("delete_topics", (Kind.TOPIC, "walk-old", Op.DELETE), topics=[{"name": "walk-old"}], timeout_ms=5000),
    _step("delete_topics", note="that does not exist", topics=[{"name": "walk-missing"}], timeout_ms=5000),
    _step("delete_records", _T(Op.DELETE), topics=_rows(offset=0), timeout_ms=5000),
    _step(
        "init_producer_id",
        _X(Op.WRITE),
        note="transactional",
        transactional_id=TRANSACTION,
        transaction_timeout_ms=9000,
    ),
    _step("init_producer_id", _C(Op.IDEMPOTENT_WRITE), transactional_id=None, transaction_timeout_ms=9000),
    _step("init_producer_id", _T(Op.WRITE), note="by a topic", transactional_id=None, transaction_timeout_ms=9000),
    _step(
        "offset_for_leader_epoch",
        _T(Op.DESCRIBE),
        topics=[{"topic": TOPIC, "partitions": [{"partition": 0, "leader_epoch": 0}]}],
    ),
    _step(
        "add_partitions_to_txn",
        _X(Op.WRITE),
        _T(Op.WRITE),
        at_most=3,
        v3_and_below_transactional_id=TRANSACTION,
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[{"name": TOPIC, "partitions": [0]}],
    ),
    _step(
        "add_partitions_to_txn",
        _C(Op.CLUSTER_ACTION),
        note="by a broker",
        transactions=[
            {
                "transactional_id": TRANSACTION,
                "producer_id": 1,
                "producer_epoch": 0,
                "verify_only": True,
                "topics": [{"name": TOPIC, "partitions": [0]}],
            }
        ],
    ),
    _step(
        "add_offsets_to_txn",
        _X(Op.WRITE),
        _G(Op.READ),
        transactional_id=TRANSACTION,
        producer_id=1,
        producer_epoch=0,
        group_id=GROUP,
    ),
    _step("end_txn", _X(Op.WRITE), transactional_id=TRANSACTION, producer_id=1, producer_epoch=0, committed=True),
    _step(
        "write_txn_markers",
        _C(Op.ALTER),
        markers=[
            {
                "producer_id": 1,
                "producer_epoch": 0,
                "transaction_result": False,
                "topics": [{"name": TOPIC, "partition_indexes": [0]}],
                "coordinator_epoch": 0,
            }
        ],
    ),
    _step(
        "txn_offset_commit",
        _X(Op.WRITE),
        _G(Op.READ),
        _T(Op.READ),
        at_most=4,
        transactional_id=TRANSACTION,
        group_id=GROUP,
        producer_id=1,
        producer_epoch=0,
        topics=_rows(**_COMMITTED),
    ),
    _step("describe_acls", _C(Op.DESCRIBE), **_FILTER),
    _step("create_acls", _C(Op.ALTER), creations=[_ACL]),
    _step("delete_acls", _C(Op.ALTER), filters=[_FILTER]),
    _step("describe_configs", (Kind.TOPIC, TOPIC, Op.DESCRIBE_CONFIGS), note="topic", resources=[_TOPIC_CONFIG]),
    _step("describe_configs", _C(Op.DESCRIBE_CONFIGS), note="broker", resources=[_BROKER_CONFIG]),
    _step("describe_configs", (Kind.GROUP, GROUP, Op.DESCRIBE_CONFIGS), note="group", resources=[_GROUP_CONFIG]),
    _step(
        "incremental_alter_configs",
        (Kind.TOPIC, TOPIC, Op.ALTER_CONFIGS),
        note="topic",
        resources=[{**_TOPIC_CONFIG, "configs": []}],
        validate_only=True,
    ),
    _step(
        "incremental_alter_configs",
        _C(Op.ALTER_CONFIGS),
        note="broker",
        resources=[{**_BROKER_CONFIG, "configs": []}],
        validate_only=True,
    ),
    _step(
        "incremental_alter_configs",
        (Kind.GROUP, GROUP, Op.ALTER_CONFIGS),
        note="group",
        resources=[{**_GROUP_CONFIG, "configs": []}],
        validate_only=True,
    ),
    _step(
        "alter_configs",
        (Kind.TOPIC, TOPIC, Op.ALTER_CONFIGS),
        resources=[{**_TOPIC_CONFIG, "configs": []}],
        validate_only=True,
    ),
    _step("describe_log_dirs", _C(Op.DESCRIBE), topics=None),
    _step(
        "alter_replica_log_dirs",
        _C(Op.ALTER),
        dirs=[{"path": "/no-log-directory", "topics": [{"name": TOPIC, "partitions": [0]}]}],
    ),
    _step("create_partitions", _T(Op.ALTER), topics=[{"name": TOPIC, "count": 2}], timeout_ms=5000, validate_only=True),
    _step("delete_groups", (Kind.GROUP, "walk-empty", Op.DELETE), groups_names=["walk-empty"]),
    _step(
        "elect_leaders",
        _C(Op.ALTER),
        election_type=0,
        topic_partitions=[{"topic": TOPIC, "partitions": [0]}],
        timeout_ms=5000,
    ),
    _step("alter_partition_reassignments", _C(Op.ALTER), timeout_ms=5000, topics=[]),
    _step("list_partition_reassignments", _C(Op.DESCRIBE), timeout_ms=5000, topics=None),
    _step("offset_delete", _G(Op.DELETE), _T(Op.READ), group_id=GROUP, topics=_rows()),
    _step(
        "describe_quorum",
        _C(Op.DESCRIBE),
        topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}],
    ),
    _step("update_features", _C(Op.ALTER), timeout_ms=5000, feature_updates=[], validate_only=True),
    _step("describe_cluster", include_cluster_authorized_operations=True),
    _step("describe_producers", _T(Op.READ), topics=[{"name": TOPIC, "partition_indexes": [0]}]),
    _step("unregister_broker", _C(Op.ALTER), broker_id=77),
    _step("add_raft_voter", _C(Op.ALTER), cluster_id="x", timeout_ms=5000, voter_id=77, listeners=[]),
    _step("remove_raft_voter", _C(Op.ALTER), cluster_id="x", voter_id=77),
    _step("describe_transactions", _X(Op.DESCRIBE), transactional_ids=[TRANSACTION]),
    _step("list_transactions", _X(Op.DESCRIBE), state_filters=[], producer_id_filters=[]),
    _step(
        "consumer_group_heartbeat",
        (Kind.GROUP, "walk-consumers", Op.READ),
        _T(Op.DESCRIBE),
        group_id="walk-consumers",
        member_id="AAAAAAAAAAAAAAAAAAAAAQ",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    ),
    _step("consumer_group_describe", _G(Op.DESCRIBE), group_ids=[GROUP]),
    _step("list_config_resources", _C(Op.DESCRIBE_CONFIGS), resource_types=[]),
    _step("describe_topic_partitions", _T(Op.DESCRIBE), topics=[{"name": TOPIC}]),
    _step("describe_topic_partitions", _T(Op.DESCRIBE), note="all", topics=[]),
    _step(
        "share_group_heartbeat",
        (Kind.GROUP, "walk-share", Op.READ),
        _T(Op.DESCRIBE),
        group_id="walk-share",
        member_id="AAAAAAAAAAAAAAAAAAAAAg",
        member_epoch=0,
        subscribed_topic_names=[TOPIC],
    ),
    _step("share_group_describe", _G(Op.DESCRIBE), group_ids=[GROUP]),
    _step(
        "streams_group_heartbeat",
        (Kind.GROUP, "walk-streams", Op.READ),
        _T(Op.DESCRIBE),
        group_id="walk-streams",
        member_id="AAAAAAAAAAAAAAAAAAAABA",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        process_id="AAAAAAAAAAAAAAAAAAAABQ",
        topology=_TOPOLOGY,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        client_tags=[],
        task_offsets=None,
        task_end_offsets=None,
    ),
    _step(
        "streams_group_describe",
        (Kind.GROUP, "walk-streams", Op.DESCRIBE),
        _T(Op.DESCRIBE),
        group_ids=["walk-streams"],
    ),
    _step(
        "streams_group_describe",
        (Kind.GROUP, "walk-streams", Op.DESCRIBE),
        note="without its topics",
        group_ids=["walk-streams"],
    ),
    Step(
        "share_fetch",
        lambda at: {
            **_SHARE_FETCH,
            "topics": [{"topic_id": at, "partitions": [{"partition_index": 0, "acknowledgement_batches": []}]}],
            "forgotten_topics_data": [],
        },
        (_G(Op.READ), _T(Op.READ)),
    ),
    Step(
        "share_acknowledge",
        lambda at: {"group_id": GROUP, "member_id": "m", "share_session_epoch": 1, "topics": []},
        (_G(Op.READ), _T(Op.READ)),
    ),
    _share_state("initialize_share_group_state", state_epoch=0, start_offset=0),
    _share_state("read_share_group_state", leader_epoch=0),
    _share_state("write_share_group_state", **_STATE),
    _share_state("delete_share_group_state"),
    _share_state("read_share_group_state_summary", leader_epoch=0),
    _step(
        "describe_share_group_offsets",
        _G(Op.DESCRIBE),
        _T(Op.DESCRIBE),
        groups=[{"group_id": GROUP, "topics": [{"topic_name": TOPIC, "partitions": [0]}]}],
    ),
    _step(
        "alter_share_group_offsets",
        _G(Op.READ),
        _T(Op.READ),
        group_id=GROUP,
        topics=[{"topic_name": TOPIC, "partitions": [{"partition_index": 0, "start_offset": 0}]}],
    ),
    _step("delete_share_group_offsets", _G(Op.DELETE), _T(Op.READ), group_id=GROUP, topics=[{"topic_name": TOPIC}]),
    _step("describe_client_quotas", _C(Op.DESCRIBE_CONFIGS), components=[], strict=False),
    _step("alter_client_quotas", _C(Op.ALTER_CONFIGS), entries=[], validate_only=True),
    _step("describe_user_scram_credentials", _C(Op.DESCRIBE), users=[{"name": "walk-user"}]),
    _step(
        "alter_user_scram_credentials",
        _C(Op.ALTER),
        deletions=[{"name": "walk-user", "mechanism": 1}],
        upsertions=[],
    ),
)


class Outcome(NamedTuple):
    nothing: dict[str, Any]
    exact: list[str]
    """The kinds of permission that the client with permissions is told to lack."""


def walk(secured: Secured) -> dict[str, Outcome]:
    """The outcomes of all steps that the broker offers, by the name of the step."""
    outcomes: dict[str, Outcome] = {}
    with secured.cluster("admin") as admin, secured.cluster("nothing") as nothing, secured.cluster("exact") as exact:
        for name in (TOPIC, "walk-old"):
            admin.create_topic(name, 1, 1)
        topic_id = next(row.topic_id for row in admin.call("metadata", topics=[{"name": TOPIC}]).topics)
        offered = {row.api_key for row in admin.call("api_versions", at_most=2).api_keys}
        for step in STEPS:
            if request_schema(step.api).api_key not in offered:
                continue
            fields = step.fields(topic_id)
            refused = summary(_call(nothing, step, fields))
            with granted(admin, "User:exact", step.needs):
                allowed = summary(_call(exact, step, fields))
            codes = {code for values in allowed.values() for code in values}
            outcomes[step.name] = Outcome(refused, sorted(REFUSALS[code] for code in codes if code in REFUSALS))
    return outcomes


def _call(cluster: Cluster, step: Step, fields: dict[str, Any]) -> Message | str:
    try:
        return cluster.call(step.api, at_most=step.at_most, within_s=10, once=True, **fields)
    except Exception as error:
        return type(error).__name__


@contextmanager
def granted(admin: Cluster, principal: str, needs: tuple[Permission, ...], host: str = "*") -> Iterator[None]:
    """Gives permissions, and takes them away at the end."""
    rows = [
        {
            "resource_type": kind,
            "resource_name": name,
            "resource_pattern_type": 3,
            "principal": principal,
            "host": host,
            "operation": operation,
            "permission_type": 3,
        }
        for kind, name, operation in needs
    ]
    if rows:
        created = admin.call("create_acls", creations=rows)
        assert [row.error_code for row in created.results] == [0] * len(rows), created
    wanted: dict[str, Any] = {**_FILTER, "resource_name_filter": None, "principal_filter": principal}

    def are_known(count: int) -> bool:
        return bool(sum(len(row.acls) for row in admin.call("describe_acls", **wanted).resources) == count)

    until(lambda: are_known(len(set(needs))))
    try:
        yield
    finally:
        admin.call("delete_acls", filters=[wanted])
        until(lambda: are_known(0))


def summary(response: Message | str) -> dict[str, Any]:
    """The error codes of a response by their place, and the length of lists without errors."""
    if isinstance(response, str):
        return {"failed": [response]}
    found: dict[str, set[Any]] = {}
    _collect(response, "", found)
    return {place: sorted(codes) for place, codes in sorted(found.items())}


def _collect(value: Any, place: str, found: dict[str, set[Any]]) -> None:
    for name in value.__slots__:
        part = getattr(value, name)
        if name.endswith("error_code"):
            found.setdefault(place + name, set()).add(int(part))
        elif isinstance(part, list):
            for row in part:
                if isinstance(row, Message):
                    _collect(row, f"{place}{name}[].", found)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, secured_kafka(Path(directory)) as kafka:
        outcomes = walk(kafka)
    GOLDEN.write_text(json.dumps({name: row._asdict() for name, row in outcomes.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
