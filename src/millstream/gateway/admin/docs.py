"""Topics and groups, described."""

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
    Parameter("prefix", "Only those whose names begin with this.", TEXT),
    Parameter("offset", "How many to leave out at the beginning.", whole(minimum=0)),
    Parameter("limit", "How many at most; below 1 is no limit.", INT32),
)
_SUMMARY: dict[str, JsonSchema] = {
    "name": TEXT,
    "partition_count": INT32,
    "replication_factor": INT32,
    "internal": FLAG,
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
        "source": text("Where the value comes from, as Kafka calls it."),
        "default": {"type": "boolean", "description": "Whether it was not set for this topic."},
        "read_only": FLAG,
        "sensitive": FLAG,
        "documentation": nullable(TEXT),
    }
)
_SETTINGS = mapping(nullable({"type": ["string", "number", "boolean"]}))

CLUSTER = Doc(
    tag="Cluster",
    summary="The cluster and its brokers",
    answer=record(
        {
            "cluster_id": TEXT,
            "controller": INT32,
            "brokers": array(record({"id": INT32, "host": TEXT, "port": INT32, "rack": nullable(TEXT)})),
        }
    ),
)
LIST_TOPICS = Doc(
    tag=_TOPICS,
    summary="The topics there are",
    parameters=(Parameter("internal", "With those that the cluster made for itself.", FLAG), *_PAGE),
    answer=record({"topics": array(record(_SUMMARY))}),
)
CREATE_TOPIC = Doc(
    tag=_TOPICS,
    summary="Create a topic",
    description="What is left out is the brokers' default. Answers once the topic can be written to.",
    body=record(
        {"name": text("Letters, digits, '.', '_' and '-'.", minLength=1, maxLength=249)},
        {
            "partitions": nullable(whole(minimum=1, maximum=10_000)),
            "replication_factor": nullable(whole(minimum=1, maximum=100)),
            "configs": nullable(_SETTINGS),
        },
        closed=True,
    ),
    answer=record(_SUMMARY),
    status=201,
    errors=(409, 422),
    example={"name": "orders", "partitions": 6, "configs": {"retention.ms": "604800000"}},
)
DESCRIBE_TOPIC = Doc(
    tag=_TOPICS,
    summary="A topic: its partitions, their offsets, and what was set for it",
    answer=record({**_SUMMARY, "partitions": array(_PARTITION), "configs": mapping(nullable(TEXT))}),
)
DELETE_TOPIC = Doc(tag=_TOPICS, summary="Delete a topic and all its records", status=204, errors=(403, 409))
ADD_PARTITIONS = Doc(
    tag=_TOPICS,
    summary="Add partitions to a topic",
    description="Keys that are written afterwards may go to other partitions than before.",
    body=record({"count": whole("How many there shall be.", 1, 10_000)}, closed=True),
    answer=record({"name": TEXT, "partitions": INT32}),
    errors=(409, 422),
)
TOPIC_CONFIGS = Doc(tag=_TOPICS, summary="A topic's settings", answer=record({"configs": array(_CONFIG)}))
SET_TOPIC_CONFIGS = Doc(
    tag=_TOPICS,
    summary="Change a topic's settings",
    description="Those that are named; null goes back to the default. Answers what is set for the topic now.",
    parameters=(Parameter("dry_run", "Only see whether it could be done.", FLAG),),
    body=record({"configs": _SETTINGS}, closed=True),
    answer=record({"configs": array(_CONFIG)}),
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
    "description": "Where to: an offset outside of the log is moved to its nearer end.",
    "anyOf": [
        {"enum": ["earliest", "latest"]},
        record({"offset": whole(minimum=0, maximum=2**63 - 1)}, closed=True),
        record({"time": whole("Milliseconds since 1970.", 0, 2**63 - 1)}, closed=True),
    ],
}


def group_docs(kind: str) -> dict[tuple[str, str], Doc]:
    """Of one kind of groups, by method and the path below its prefix."""
    tag = f"{kind.capitalize()}s"
    return {
        ("GET", ""): Doc(
            tag=tag,
            summary=f"The {kind}s there are",
            parameters=_PAGE,
            answer=record({"groups": array(record({"group": TEXT, "type": TEXT, "state": TEXT}))}),
        ),
        ("GET", "/{group}"): Doc(
            tag=tag,
            summary=f"A {kind}: its members, what they read, and how far they are",
            answer=record(
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
            tag=tag, summary=f"How far a {kind} is", answer=record({"offsets": array(_OFFSET)})
        ),
        ("POST", "/{group}/offsets"): Doc(
            tag=tag,
            summary=f"Set where a {kind} without members goes on",
            body=record(
                {"topic": TEXT, "to": _TO},
                {"partitions": nullable(array(whole(minimum=0, maximum=2**31 - 1))), "dry_run": FLAG},
                closed=True,
            ),
            answer=record(
                {
                    "dry_run": FLAG,
                    "offsets": array(record({"topic": TEXT, "partition": INT32, "from": nullable(INT64), "to": INT64})),
                }
            ),
            errors=(409, 422),
            example={"topic": "orders", "to": "earliest", "dry_run": True},
        ),
    }
