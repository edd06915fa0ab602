"""The OpenAPI descriptions of the routes for topics and groups."""

from millstream.gateway.http.routes import (
    FLAG,
    INT32,
    INT64,
    TEXT,
    Doc,
    JsonSchema,
    Parameter,
    array,
    mapping,
    nullable,
    record,
    text,
    whole,
)

_TOPICS = "Topics"
_PAGE = (
    Parameter("prefix", "Prefix of the names.", TEXT),
    Parameter("offset", "Number of items to skip.", whole(minimum=0)),
    Parameter("limit", "Largest number of items; below 1 for no limit.", INT32),
)
_SUMMARY: dict[str, JsonSchema] = {
    "name": TEXT,
    "partition_count": INT32,
    "replication_factor": INT32,
    "internal": FLAG,
    "branch_of": nullable(text("The topic of which this is a branch.")),
}
_PARTITION = record(
    {
        "partition": INT32,
        "leader": nullable(INT32),
        "replicas": array(INT32),
        "isr": array(INT32),
        "start_offset": nullable(INT64),
        "end_offset": nullable(INT64),
    }
)
_CONFIG = record(
    {
        "name": TEXT,
        "value": nullable(TEXT),
        "source": text("Source of the value, by Kafka's name."),
        "default": {"type": "boolean", "description": "True if it was not set for this topic."},
        "read_only": FLAG,
        "sensitive": FLAG,
        "documentation": nullable(TEXT),
    }
)
_SETTINGS = mapping(nullable({"type": ["string", "number", "boolean"]}))

CLUSTER = Doc(
    tag="Cluster",
    summary="The cluster and its brokers",
    response=record(
        {
            "cluster_id": TEXT,
            "controller": INT32,
            "brokers": array(record({"id": INT32, "host": TEXT, "port": INT32, "rack": nullable(TEXT)})),
        }
    ),
)
LIST_TOPICS = Doc(
    tag=_TOPICS,
    summary="List topics",
    parameters=(Parameter("internal", "Include internal topics.", FLAG), *_PAGE),
    response=record({"topics": array(record(_SUMMARY))}),
)
CREATE_TOPIC = Doc(
    tag=_TOPICS,
    summary="Create a topic",
    description="Values that are not given are the defaults of the brokers. Responds when the topic can be written to.",
    body=record(
        {"name": text("Letters, digits, '.', '_' and '-'.", minLength=1, maxLength=249)},
        {
            "partitions": nullable(whole(minimum=1, maximum=10_000)),
            "replication_factor": nullable(whole(minimum=1, maximum=100)),
            "configs": nullable(_SETTINGS),
        },
        closed=True,
    ),
    response=record(_SUMMARY),
    status=201,
    errors=(409, 422),
    example={"name": "orders", "partitions": 6, "configs": {"retention.ms": "604800000"}},
)
DESCRIBE_TOPIC = Doc(
    tag=_TOPICS,
    summary="Describe a topic: partitions, offsets, and the settings that were set for it",
    response=record({**_SUMMARY, "partitions": array(_PARTITION), "configs": mapping(nullable(TEXT))}),
)
BRANCH_TOPIC = Doc(
    tag=_TOPICS,
    summary="Create a branch of a topic",
    description="The branch has the records of the topic up to a point, shares its files, and goes on by itself. The "
    "point is the end now, or earlier: the first record at or after a time, or an offset for each partition. Responds "
    "when the branch can be written to.",
    body=record(
        {"name": text("Name of the branch.", minLength=1, maxLength=249)},
        {
            "at": nullable(whole("A time in milliseconds since 1970.", 0)),
            "offsets": nullable(array(record({"partition": INT32, "offset": INT64}, closed=True))),
            "configs": nullable(_SETTINGS),
            "groups": nullable(mapping(nullable(text("The group that gets the committed offsets of this one.")))),
        },
        closed=True,
    ),
    response=record(
        {
            **_SUMMARY,
            "partitions": array(record({"partition": INT32, "start": INT64, "offset": INT64, "note": nullable(TEXT)})),
            "groups": mapping(INT32),
        }
    ),
    status=201,
    errors=(409, 422),
    example={"name": "orders-test", "groups": {"billing": "billing-test"}},
)
DELETE_TOPIC = Doc(tag=_TOPICS, summary="Delete a topic and its records", status=204, errors=(403, 409))
ADD_PARTITIONS = Doc(
    tag=_TOPICS,
    summary="Add partitions to a topic",
    description="Records that are written afterwards may have another partition for the same key.",
    body=record({"count": whole("New number of partitions.", 1, 10_000)}, closed=True),
    response=record({"name": TEXT, "partitions": INT32}),
    errors=(409, 422),
)
TOPIC_CONFIGS = Doc(tag=_TOPICS, summary="List the settings of a topic", response=record({"configs": array(_CONFIG)}))
SET_TOPIC_CONFIGS = Doc(
    tag=_TOPICS,
    summary="Change settings of a topic",
    description="Changes the given settings; null resets one. The response has the settings of the topic.",
    parameters=(Parameter("dry_run", "Only check the change.", FLAG),),
    body=record({"configs": _SETTINGS}, closed=True),
    response=record({"configs": array(_CONFIG)}),
    errors=(422,),
    example={"configs": {"retention.ms": "60000", "cleanup.policy": None}},
)

_OFFSET = record(
    {
        "topic": TEXT,
        "partition": INT32,
        "offset": INT64,
        "end_offset": nullable(INT64),
        "lag": nullable(INT64),
    }
)
_MEMBER = record(
    {
        "member_id": TEXT,
        "instance_id": nullable(TEXT),
        "client_id": TEXT,
        "host": TEXT,
        "assignment": array(record({"topic": TEXT, "partition": INT32})),
    }
)
_TO: JsonSchema = {
    "description": "Target. An offset outside of the log is moved to the nearest offset of the log.",
    "anyOf": [
        {"enum": ["earliest", "latest"]},
        record({"offset": whole(minimum=0, maximum=2**63 - 1)}, closed=True),
        record({"time": whole("Milliseconds since 1970.", 0, 2**63 - 1)}, closed=True),
    ],
}


def group_docs(kind: str) -> dict[tuple[str, str], Doc]:
    """The descriptions for one kind of groups, by method and path below its prefix."""
    tag = f"{kind.capitalize()}s"
    return {
        ("GET", ""): Doc(
            tag=tag,
            summary=f"List {kind}s",
            parameters=_PAGE,
            response=record({"groups": array(record({"group": TEXT, "type": TEXT, "state": TEXT}))}),
        ),
        ("GET", "/{group}"): Doc(
            tag=tag,
            summary=f"Describe a {kind}: members, assignments and offsets",
            response=record(
                {
                    "group": TEXT,
                    "type": TEXT,
                    "state": TEXT,
                    "assignor": TEXT,
                    "coordinator": INT32,
                    "members": array(_MEMBER),
                    "offsets": array(_OFFSET),
                }
            ),
        ),
        ("DELETE", "/{group}"): Doc(tag=tag, summary=f"Delete a {kind} without members", status=204, errors=(409,)),
        ("GET", "/{group}/offsets"): Doc(
            tag=tag, summary=f"Offsets and lag of a {kind}", response=record({"offsets": array(_OFFSET)})
        ),
        ("POST", "/{group}/offsets"): Doc(
            tag=tag,
            summary=f"Reset the offsets of a {kind} without members",
            body=record(
                {"topic": TEXT, "to": _TO},
                {"partitions": nullable(array(whole(minimum=0, maximum=2**31 - 1))), "dry_run": FLAG},
                closed=True,
            ),
            response=record(
                {
                    "dry_run": FLAG,
                    "offsets": array(record({"topic": TEXT, "partition": INT32, "from": nullable(INT64), "to": INT64})),
                }
            ),
            errors=(409, 422),
            example={"topic": "orders", "to": "earliest", "dry_run": True},
        ),
    }
