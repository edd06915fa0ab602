"""Long requests in parts: what the handler gets, and what becomes of its responses."""

import asyncio
from typing import Any

from millstream.formats.protocol.schema import Message, request_schema, response_schema
from millstream.node.server.long_requests import SPLITS, Turnstile, in_parts, is_split, most_items, parts, respond
from millstream.node.server.request import Context
from millstream.node.server.service import Peer

CONTEXT = Context(11, "test", Peer("10.0.0.9", 1, "PLAINTEXT"))


def message(api: str, version: int, **fields: Any) -> Message:
    schema = request_schema(api)
    return schema.decode(schema.encode(fields, version), version)


def offsets(*topics: tuple[str, int]) -> Message:
    rows = [{"name": name, "partitions": [{"partition_index": n} for n in range(count)]} for name, count in topics]
    return message("list_offsets", 11, replica_id=-1, topics=rows)


def echo(request: Message) -> dict[str, Any]:
    topics = [
        {"name": each.name, "partitions": [{"partition_index": row.partition_index} for row in each.partitions]}
        for each in request.topics
    ]
    return {"throttle_time_ms": 0, "topics": topics}


def test_every_row_of_the_table_names_arrays_that_there_are() -> None:
    for api, splits in SPLITS.items():
        for split in splits:
            request_part, response_part = request_schema(api).root, response_schema(api).root
            for level in split.levels:
                (request_field,) = [each for each in request_part.fields if each.name == level.request_field][:1]
                (response_field,) = [each for each in response_part.fields if each.name == level.response_field][:1]
                assert request_field.type.startswith("[]") and response_field.type == "[]{}", (api, level)
                assert bool(level.key) == (request_field.children is not None), (api, level)
                if request_field.children is not None:
                    assert set(level.key) <= {each.name for each in request_field.children.fields}, (api, level)
                    request_part = request_field.children
                assert response_field.children is not None
                response_part = response_field.children
        assert most_items(api) > 1000


def test_parts_have_every_row_once_and_no_more_than_may_be() -> None:
    request = offsets(("a", 700), ("b", 0), ("c", 2), *((f"t{n}", 1) for n in range(900)))
    (split,) = SPLITS["list_offsets"]
    got = [
        (topic.name, row.partition_index)
        for part in parts(request, split)
        for topic in part.topics
        for row in topic.partitions
    ]
    assert got == [(topic.name, row.partition_index) for topic in request.topics for row in topic.partitions]
    sizes = [sum(max(1, len(topic.partitions)) for topic in part.topics) for part in parts(request, split)]
    assert max(sizes) <= split.most and [part.replica_id for part in parts(request, split)] == [-1] * len(sizes)
    assert "b" in [topic.name for part in parts(request, split) for topic in part.topics]


def test_a_topic_that_was_cut_is_one_topic_in_the_response() -> None:
    request = offsets(("a", 1200), ("b", 1), ("c", 600))
    seen = []

    def handle(part: Message, context: Context) -> dict[str, Any]:
        seen.append(part)
        return echo(part)

    async def scene() -> Any:
        return await respond("list_offsets", handle, request, CONTEXT, Turnstile())  # type: ignore[misc]

    assert asyncio.run(scene()) == echo(request)
    assert len(seen) == 4


def test_a_short_request_goes_to_the_handler_as_it_is() -> None:
    request = offsets(("a", 100))
    assert not is_split("list_offsets", request)
    assert respond("list_offsets", lambda got, _: {"same": got is request}, request, CONTEXT, Turnstile()) == {
        "same": True
    }


def test_an_error_of_the_whole_request_ends_it() -> None:
    request = message("offset_delete", 0, group_id="g", topics=echo(offsets(("a", 2000)))["topics"])
    (split,) = SPLITS["offset_delete"]
    calls = []

    def handle(part: Message) -> dict[str, Any]:
        calls.append(part)
        return {"error_code": 16, "topics": []} if len(calls) == 2 else {"error_code": 0, **echo(part)}

    response = asyncio.run(in_parts(split, handle, request, Turnstile()))
    assert response["error_code"] == 16 and len(calls) == 2


def test_a_key_that_is_named_often_is_handled_once() -> None:
    request = message("find_coordinator", 6, key_type=0, coordinator_keys=["a", "b"] * 1000)
    (split,) = SPLITS["find_coordinator"]
    assert [part.coordinator_keys for part in parts(request, split)] == [["a", "b"]]
