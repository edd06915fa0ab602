"""aiokafka behind the line protocol: each request runs its own coroutine on one long-lived event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import BrokerResponseError, for_code
from aiokafka.helpers import create_ssl_context
from line_protocol import (
    ClientError,
    Request,
    UnsupportedError,
    announce,
    decode,
    decode_headers,
    keyword_security,
    record,
    serve,
)

MAX_MESSAGE_BYTES = 10_000_000

_transactional: dict[str, AIOKafkaProducer] = {}


def security(request: Request) -> dict[str, Any]:
    arguments = keyword_security(request)
    files = {name: arguments.pop(f"ssl_{name}", None) for name in ("cafile", "certfile", "keyfile")}
    if files["cafile"]:
        arguments["ssl_context"] = create_ssl_context(**files)
    return arguments


@asynccontextmanager
async def admin(request: Request) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=request["bootstrap"], **security(request))
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def to_client_error(error: Exception) -> ClientError:
    code = error.errno if isinstance(error, BrokerResponseError) else None
    return ClientError(type(error).__name__, code, str(error))


def raise_for(code: int, message: str | None) -> None:
    if code:
        raise for_code(code)(message)


async def hello(_: Request) -> dict[str, Any]:
    return {
        "client": f"aiokafka {aiokafka.__version__}",
        "codecs": ["none", "gzip", "snappy", "lz4", "zstd"],
        "lacks": {},
    }


async def create_topic(request: Request) -> None:
    async with admin(request) as client:
        topic = NewTopic(request["topic"], request["partitions"], 1, topic_configs=request["config"])
        response = await client.create_topics([topic])
        raise_for(response.topic_errors[0][1], response.topic_errors[0][2])


async def produce(request: Request) -> dict[str, Any]:
    client = AIOKafkaProducer(
        bootstrap_servers=request["bootstrap"],
        **security(request),
        acks=request["acks"],
        compression_type=None if request["codec"] == "none" else request["codec"],
        enable_idempotence=request["idempotent"],
        max_request_size=MAX_MESSAGE_BYTES,
        # Also how long an unknown topic is waited for.
        request_timeout_ms=10_000,
        linger_ms=5,
    )
    await client.start()
    try:
        sent = []
        for each in request["records"]:
            sent.append(
                await client.send(
                    request["topic"],
                    value=decode(each["value"]),
                    key=decode(each["key"]),
                    headers=decode_headers(each["headers"]),
                    partition=each["partition"],
                    timestamp_ms=each["timestamp"],
                )
            )
        results: list[dict[str, Any]] = []
        for outcome in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(outcome, Exception):
                results.append({"error": to_client_error(outcome).as_json()})
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                results.append({"offset": None if request["acks"] == 0 else outcome.offset})
        return {"results": results}
    finally:
        await client.stop()


async def stream(request: Request) -> dict[str, Any]:
    client = AIOKafkaProducer(
        bootstrap_servers=request["bootstrap"],
        **security(request),
        acks="all",
        enable_idempotence=True,
        max_batch_size=200,
        request_timeout_ms=90_000,
        retry_backoff_ms=50,
    )
    await client.start()
    try:
        sent = []
        for index in range(request["count"]):
            value = b"record-%06d" % index
            sent.append(await client.send(request["topic"], value=value, partition=request["partition"]))
            if index == request["announce_after"]:
                await sent[0]
                announce("progress")
            if request["interval_us"]:
                await asyncio.sleep(request["interval_us"] / 1e6)
        return {"offsets": [metadata.offset for metadata in await asyncio.gather(*sent)]}
    finally:
        await client.stop()


async def consume(request: Request) -> dict[str, Any]:
    client = AIOKafkaConsumer(
        bootstrap_servers=request["bootstrap"],
        **security(request),
        group_id=None,
        auto_offset_reset=request["reset"],
        isolation_level=request["isolation"],
        fetch_max_wait_ms=request["max_wait_ms"],
        request_timeout_ms=60_000 + request["max_wait_ms"],
    )
    await client.start()
    try:
        place = TopicPartition(request["topic"], request["partition"])
        client.assign([place])
        start = request["start"]
        if isinstance(start, dict):
            client.seek(place, (await client.offsets_for_times({place: start["timestamp"]}))[place].offset)
        elif start == "earliest":
            await client.seek_to_beginning(place)
        elif start == "latest":
            await client.seek_to_end(place)
        else:
            client.seek(place, start)
        if isinstance(start, str):
            await client.position(place)
        announce("waiting")
        records: list[dict[str, Any]] = []
        deadline = time.monotonic() + request["timeout_ms"] / 1000
        while len(records) < request["count"] and time.monotonic() < deadline:
            polled = await client.getmany(timeout_ms=250, max_records=request["count"] - len(records))
            for messages in polled.values():
                records += [
                    record(each.offset, each.key, each.value, list(each.headers), each.timestamp) for each in messages
                ]
        return {"records": records}
    finally:
        await client.stop()


async def transact(request: Request) -> None:
    name = request["producer"]
    if name not in _transactional:
        _transactional[name] = AIOKafkaProducer(
            bootstrap_servers=request["bootstrap"], **security(request), transactional_id=request["transactional_id"]
        )
        await _transactional[name].start()
    client = _transactional[name]
    if request["begin"]:
        await client.begin_transaction()
    for each in request["records"]:
        await client.send_and_wait(
            request["topic"], value=decode(each["value"]), key=decode(each["key"]), partition=each["partition"]
        )
    if request["offsets"] is not None:
        group, topic, partition, offset = request["offsets"]
        await client.send_offsets_to_transaction({TopicPartition(topic, partition): offset}, group)
    if request["end"] == "commit":
        await client.commit_transaction()
    elif request["end"] == "abort":
        await client.abort_transaction()


async def list_topics(request: Request) -> dict[str, Any]:
    async with admin(request) as client:
        return {"topics": await client.list_topics()}


async def describe_topic(request: Request) -> dict[str, Any]:
    async with admin(request) as client:
        (described,) = await client.describe_topics([request["topic"]])
        raise_for(described["error_code"], request["topic"])
        return {
            "partitions": [
                {"id": each["partition"], "leader": each["leader"], "replicas": each["replicas"]}
                for each in described["partitions"]
            ]
        }


async def describe_configs(request: Request) -> dict[str, Any]:
    async with admin(request) as client:
        (response,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, request["topic"])])
        (resource,) = response.resources
        raise_for(resource[0], resource[1])
        return {"configs": {entry[0]: entry[1] for entry in resource[4]}}


async def alter_config(request: Request) -> None:
    async with admin(request) as client:
        change = ConfigResource(ConfigResourceType.TOPIC, request["topic"], {request["name"]: request["value"]})
        (response,) = await client.alter_configs([change])
        raise_for(response.resources[0][0], response.resources[0][1])


async def create_partitions(request: Request) -> None:
    async with admin(request) as client:
        response = await client.create_partitions({request["topic"]: NewPartitions(request["count"])})
        raise_for(response.topic_errors[0][1], response.topic_errors[0][2])


async def delete_topic(request: Request) -> None:
    async with admin(request) as client:
        response = await client.delete_topics([request["topic"]])
        raise_for(response.topic_error_codes[0][1], request["topic"])


async def delete_records(request: Request) -> dict[str, Any]:
    async with admin(request) as client:
        place = TopicPartition(request["topic"], request["partition"])
        response = await client.delete_records({place: RecordsToDelete(before_offset=request["offset"])})
        return {"low_watermark": response[place]}


async def list_offsets(request: Request) -> dict[str, Any]:
    if request["at"] == "max_timestamp":
        raise UnsupportedError("aiokafka has no lookup of the greatest timestamp")
    client = AIOKafkaConsumer(bootstrap_servers=request["bootstrap"], **security(request), group_id=None)
    await client.start()
    try:
        place = TopicPartition(request["topic"], request["partition"])
        client.assign([place])
        if request["at"] == "earliest":
            return {"offset": (await client.beginning_offsets([place]))[place]}
        if request["at"] == "latest":
            return {"offset": (await client.end_offsets([place]))[place]}
        found = (await client.offsets_for_times({place: request["at"]}))[place]
        return {"offset": -1 if found is None else found.offset}
    finally:
        await client.stop()


async def describe_cluster(request: Request) -> dict[str, Any]:
    async with admin(request) as client:
        described = await client.describe_cluster()
        return {
            "cluster_id": described["cluster_id"],
            "controller": described["controller_id"],
            "brokers": [
                {"id": each["node_id"], "host": each["host"], "port": each["port"]} for each in described["brokers"]
            ],
        }


def main() -> None:
    coroutines = (
        hello,
        create_topic,
        produce,
        stream,
        consume,
        transact,
        list_topics,
        describe_topic,
        describe_configs,
        alter_config,
        create_partitions,
        delete_topic,
        delete_records,
        list_offsets,
        describe_cluster,
    )
    with asyncio.Runner() as runner:
        handlers = {each.__name__: (lambda request, chosen=each: runner.run(chosen(request))) for each in coroutines}
        serve(handlers, to_client_error)


if __name__ == "__main__":
    main()
