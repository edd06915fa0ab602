"""The routes of consumers, described."""

from millstream.gateway.consumers.bodies import (
    MAX_IDLE_MS,
    MAX_INSTANCE_LENGTH,
    MAX_OFFSET,
    MAX_PARTITION,
    MAX_POLL_BYTES,
    MAX_POLL_MS,
    MAX_POLL_RECORDS,
    MAX_TOPICS,
    MIN_IDLE_MS,
)
from millstream.gateway.consumers.records import FORMATS
from millstream.gateway.http.described import (
    ANYTHING,
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

_TAG = "Consumers"
_TOPIC = text("A topic's name.", minLength=1, maxLength=249)
_INSTANCE = Parameter("instance_id", "Which consumer of the group; needed only where the group has several here.", TEXT)
_INSTANCE_HEADER = Parameter("Consumer-Instance-Id", "The same as a header.", TEXT, place="header")
_WHICH = (_INSTANCE, _INSTANCE_HEADER)
FORMAT = Parameter(
    "format",
    "How values are shown: base64; json or text (what is neither comes as base64); registry: with the schema that they "
    "name, keys too.",
    text("", enum=list(FORMATS), default="base64"),
)
MESSAGE: JsonSchema = record(
    {
        "topic": TEXT,
        "partition": INT32,
        "offset": INT64,
        "key": {"description": "Text, where it is; else see key_format."},
        "value": {"description": "As `format` says; see value_format."},
        "timestamp": whole("Milliseconds since 1970."),
    },
    {
        "headers": mapping(ANYTHING),
        "key_format": text("What the key is, if not text."),
        "value_format": text("What the value is: base64, json, text, avro, json-schema, protobuf or null."),
        "key_schema_id": INT32,
        "value_schema_id": INT32,
        "key_problem": text("Why the key could not be shown as asked for."),
        "value_problem": text("Why the value could not be shown as asked for."),
    },
)
_PARTITION = record(
    {
        "topic": TEXT,
        "partition": INT32,
        "position": nullable(whole("The next offset to be handed out; null while it is looked up.")),
        "committed": nullable(whole("What the group committed.")),
        "leaving": {"type": "boolean", "description": "To go to another member: commit what came of it."},
    }
)
_CONSUMER = record(
    {
        "group": TEXT,
        "instance_id": text("Names this consumer in other requests."),
        "member_id": text("Its name in the group."),
        "topics": array(TEXT),
        "auto_offset_reset": TEXT,
        "polling": FLAG,
        "expires_in_ms": whole("When it is closed, if nobody asks for it until then."),
        "partitions": array(_PARTITION),
    }
)
_OFFSETS = record({}, {"offsets": mapping(mapping(INT64))})

SUBSCRIBE = Doc(
    tag=_TAG,
    summary="Opens a consumer that reads topics as a member of a group",
    description="Without `instance_id` there is one consumer for the group: the first call opens it, later ones change "
    "what it reads. With an `instance_id` of its own, each program is a member of its own.",
    parameters=_WHICH,
    body=record(
        {"topics": array(_TOPIC, minItems=1, maxItems=MAX_TOPICS)},
        {
            "instance_id": text("A name of your choice for one of several consumers.", maxLength=MAX_INSTANCE_LENGTH),
            "auto_offset_reset": text(
                "Where to begin without a commit; earliest by default.", enum=["earliest", "latest"]
            ),
            "expires_after_ms": whole("It is closed after that time without requests.", MIN_IDLE_MS, MAX_IDLE_MS),
        },
    ),
    answer=_CONSUMER,
    errors=(403, 409, 429, 501, 502),
    example={"topics": ["orders"]},
)
POLL = Doc(
    tag=_TAG,
    summary="The next records, as soon as there are any",
    description="One poll at a time. An empty list if none came in time.",
    parameters=(
        *_WHICH,
        Parameter("max_records", "At most so many; 500 by default.", whole("", 1, MAX_POLL_RECORDS)),
        Parameter("timeout_ms", "How long to wait for the first one; 1000 by default.", whole("", 0, MAX_POLL_MS)),
        Parameter(
            "max_bytes", "At most so much of keys and values, but one record; 1 MiB by default.",
            whole("", 1, MAX_POLL_BYTES),
        ),
        FORMAT,
    ),
    answer=record({"messages": array(MESSAGE)}),
    errors=(403, 409, 410, 502),
)  # fmt: skip
COMMIT = Doc(
    tag=_TAG,
    summary="Commits offsets: what comes before them is done",
    description="By topic and partition the next offset to be read, which must not be beyond what was handed out. "
    "Without `offsets`: all that was handed out.",
    parameters=_WHICH,
    body=_OFFSETS,
    body_required=False,
    answer=_OFFSETS,
    errors=(403, 409, 410, 502),
    example={"offsets": {"orders": {"0": 17}}},
)
SEEK = Doc(
    tag=_TAG,
    summary="Reads on from another offset of a partition",
    parameters=_WHICH,
    body=record(
        {
            "topic": _TOPIC,
            "partition": whole("", 0, MAX_PARTITION),
            "offset": {"anyOf": [whole("", 0, MAX_OFFSET), {"type": "string", "enum": ["earliest", "latest"]}]},
        }
    ),
    answer=record({"topic": TEXT, "partition": INT32, "offset": INT64}),
    errors=(403, 409, 410, 416, 502),
    example={"topic": "orders", "partition": 0, "offset": 17},
)
SHOW = Doc(
    tag=_TAG,
    summary="The group's consumers in this gateway: partitions, positions, when they expire",
    parameters=_WHICH,
    answer=record({"group": TEXT, "consumers": array(_CONSUMER)}),
    errors=(410,),
)
SHOW_ALL = Doc(
    tag=_TAG,
    summary="All consumers that are open in this gateway",
    parameters=(
        Parameter("offset", "How many to leave out at the beginning.", whole("", minimum=0)),
        Parameter("limit", "How many at most; below 1 is no limit.", INT32),
    ),
    answer=record({"consumers": array(_CONSUMER)}),
)
LEAVE = Doc(
    tag=_TAG,
    summary="Leaves the group and closes the consumer",
    parameters=_WHICH,
    status=204,
    errors=(409, 410),
)
