"""Conditional produce over HTTP (KIP-27): `If-Match` with the partition's end that the writer expects.

The ETag of a partition is its end offset, such as `"42"`. `GET /topics/{topic}/partitions/{partition}/offsets` has it,
and so does every response to a conditional request: the new end after 200, the present end after 412. The records of
such a request are for one partition, and are written as one batch: all of them or none.
"""

import time
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.formats.records.record import Record
from millstream.gateway.http.errors import ApiError, json_response
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import INT64, TEXT, Doc, Parameter, endpoint, record, whole
from millstream.gateway.identity.caller import current_caller
from millstream.gateway.identity.missing_acl import Needs
from millstream.gateway.produce.publisher import OutgoingRecord, Stored
from millstream.raw_client import EARLIEST, LATEST, SetupError, TopicPartition
from millstream.raw_client.conditional import ConditionalProducer, UnexpectedEndError

IF_MATCH = Parameter(
    "If-Match",
    'Writes only if the partition\'s end is this ETag, such as "42"; otherwise 412 with the end. All records must name '
    "one partition, unless the topic has only one.",
    TEXT,
    place="header",
)
_LARGEST = (1 << 63) - 1
_HINT = 'send If-Match: "N" with the end of the partition (GET /topics/TOPIC/partitions/N/offsets has it as ETag)'


def etag(end_offset: int) -> dict[str, str]:
    return {"ETag": f'"{end_offset}"'}


def expected_end(req: ApiRequest) -> int | None:
    """The offset in If-Match; None without this header. 400 for anything but one offset in quotes."""
    given = req.request.headers.get("if-match")
    if given is None:
        return None
    text = given.strip()
    digits = text[1:-1] if len(text) > 2 and text[0] == text[-1] == '"' else ""
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19) or int(digits) > _LARGEST:
        raise ApiError(400, f"If-Match: {text[:100]} is not the end of a partition", _HINT)
    return int(digits)


def partition_of(records: Sequence[OutgoingRecord], partition_count: int) -> int:
    """The one partition of the records of a conditional request."""
    named = {each.partition for each in records}
    if named == {-1} and partition_count == 1:
        return 0
    if len(named) != 1 or -1 in named:
        raise ApiError(422, "a request with If-Match is for one partition", "give all records the same partition")
    return named.pop()


def append_if(
    producer: ConditionalProducer, topic: str, partition: int, records: Sequence[OutgoingRecord], expected: int
) -> list[Stored]:
    """Writes the records at the expected offset; blocks. 412 if the partition ends elsewhere."""
    now_ms = time.time_ns() // 1_000_000
    made = [
        Record(
            each.key,
            each.value,
            tuple((name, value.encode() if isinstance(value, str) else value) for name, value in each.headers or ()),
            timestamp=each.timestamp or now_ms,
        )
        for each in records
    ]
    try:
        producer.append(TopicPartition(topic, partition), made, expected)
    except UnexpectedEndError as error:
        refused = ApiError(
            412,
            f"partition {partition} of topic {topic!r} ends at {error.end_offset}, not at {expected}",
            "nothing was written: read the records before the end, and decide again",
            code=41201,
            headers=etag(error.end_offset),
        )
        refused.extra = {"end_offset": error.end_offset}
        raise refused from None
    except SetupError as error:
        raise ApiError(501, str(error), "send the request without If-Match") from None
    return [Stored(partition, expected + number, each.timestamp) for number, each in enumerate(made)]


OFFSETS = Doc(
    tag="Topics",
    summary="Show the first and the end offset of a partition",
    description="The ETag is the end offset, for If-Match.",
    parameters=(Parameter("partition", "The partition.", whole(minimum=0), place="path"),),
    response=record({"beginning_offset": INT64, "end_offset": INT64}),
)


def partition_offsets_routes() -> list[BaseRoute]:
    path = "/topics/{topic}/partitions/{partition}/offsets"
    return [endpoint("GET", path, partition_offsets, doc=OFFSETS, needs=Needs(topic="Describe"))]


def partition_offsets(req: ApiRequest) -> Any:
    text, topic = req.path("partition"), req.path("topic")
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ApiError(404, f"there is no partition {text[:100]!r}", "partitions are numbered from 0", code=40404)
    cluster = current_caller().connection.cluster
    if int(text) >= cluster.partitions_of(topic):
        raise ApiError(404, f"topic {topic!r} has no partition {text}", "GET /topics/TOPIC lists them", code=40404)
    at = TopicPartition(topic, int(text))
    begin = cluster.offsets({at: EARLIEST})[at].offset
    end = cluster.offsets({at: LATEST}, read_committed=False)[at].offset
    response: Response = json_response({"beginning_offset": begin, "end_offset": end}, headers=etag(end))
    return response
