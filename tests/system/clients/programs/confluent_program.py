"""confluent-kafka (librdkafka) behind the line protocol."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from line_protocol import ClientError, Request, announce, decode, decode_headers, librdkafka_security, record, serve

# Far above the broker's limit, so that it is the broker who refuses a record.
MAX_MESSAGE_BYTES = 10_000_000
DELIVERY_TIMEOUT_MS = 90_000

CALL_SECONDS = 60

_admins: dict[str, AdminClient] = {}
_transactional: dict[str, Producer] = {}


def admin(request: Request) -> AdminClient:
    bootstrap = request["bootstrap"]
    if bootstrap not in _admins:
        _admins[bootstrap] = AdminClient({"bootstrap.servers": bootstrap, **librdkafka_security(request)})
    return _admins[bootstrap]


def from_kafka_error(error: KafkaError) -> ClientError:
    code = error.code()
    return ClientError(error.name(), code if code >= 0 else None, error.str())


def to_client_error(error: Exception) -> ClientError:
    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return from_kafka_error(error.args[0])
    return ClientError(type(error).__name__, None, str(error))


def hello(_: Request) -> dict[str, Any]:
    version = f"confluent-kafka {confluent_kafka.version()[0]}, librdkafka {confluent_kafka.libversion()[0]}"
    return {"client": version, "codecs": ["none", "gzip", "snappy", "lz4", "zstd"], "lacks": {}}


def create_topic(request: Request) -> None:
    topic = NewTopic(
        request["topic"], num_partitions=request["partitions"], replication_factor=1, config=request["config"]
    )
    admin(request).create_topics([topic])[request["topic"]].result()


def producer(request: Request, **settings: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": request["bootstrap"],
            **librdkafka_security(request),
            "message.max.bytes": MAX_MESSAGE_BYTES,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            **settings,
        }
    )


def produce(request: Request) -> dict[str, Any]:
    client = producer(
        request,
        **{
            "compression.type": request["codec"],
            "acks": str(request["acks"]),
            "enable.idempotence": request["idempotent"],
            "linger.ms": 5,
            "batch.num.messages": request["batch_records"],
            # How long an unknown topic is waited for.
            "topic.metadata.propagation.max.ms": 5000,
        },
    )
    results: list[dict[str, Any]] = [{} for _ in request["records"]]

    def settle(index: int) -> Any:
        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                results[index] = {"error": from_kafka_error(error).as_json()}
            else:
                # librdkafka invents an offset for acks=0.
                results[index] = {"offset": None if request["acks"] == 0 else message.offset()}

        return delivered

    for index, each in enumerate(request["records"]):
        optional = {} if each["timestamp"] is None else {"timestamp": each["timestamp"]}
        if each["partition"] is not None:
            optional["partition"] = each["partition"]
        client.produce(
            request["topic"],
            value=decode(each["value"]),
            key=decode(each["key"]),
            headers=decode_headers(each["headers"]),
            on_delivery=settle(index),
            **optional,
        )
    client.flush()
    return {"results": results}


def stream(request: Request) -> dict[str, Any]:
    client = producer(
        request, **{"enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 10, "retry.backoff.ms": 50}
    )
    offsets: list[int | None] = [None] * request["count"]
    failed: list[KafkaError] = []
    acked = 0

    def delivered(error: KafkaError | None, message: Any) -> None:
        nonlocal acked
        if error is not None:
            failed.append(error)
            return
        offsets[int(message.value()[len("record-") :])] = message.offset()
        acked += 1
        if acked == request["announce_after"]:
            announce("progress")

    for index in range(request["count"]):
        value = b"record-%06d" % index
        client.produce(request["topic"], value=value, partition=request["partition"], on_delivery=delivered)
        client.poll(0)
        if request["interval_us"]:
            time.sleep(request["interval_us"] / 1e6)
    client.flush()
    if failed:
        raise KafkaException(failed[0])
    return {"offsets": offsets}


def consume(request: Request) -> dict[str, Any]:
    client = Consumer(
        {
            "bootstrap.servers": request["bootstrap"],
            **librdkafka_security(request),
            "group.id": "interoperability",
            "enable.auto.commit": False,
            "auto.offset.reset": "error" if request["reset"] == "none" else request["reset"],
            "isolation.level": request["isolation"],
            "fetch.wait.max.ms": request["max_wait_ms"],
            "socket.timeout.ms": 60_000 + request["max_wait_ms"],
        }
    )
    try:
        start = request["start"]
        place = TopicPartition(request["topic"], request["partition"])
        if isinstance(start, dict):
            place.offset = start["timestamp"]
            place = client.offsets_for_times([place], timeout=20)[0]
        elif start == "latest":
            place.offset = client.get_watermark_offsets(place, timeout=20)[1]
        else:
            place.offset = 0 if start == "earliest" else start
            if start == "earliest":
                place.offset = client.get_watermark_offsets(place, timeout=20)[0]
        client.assign([place])
        announce("waiting")
        records: list[dict[str, Any]] = []
        deadline = time.monotonic() + request["timeout_ms"] / 1000
        while len(records) < request["count"] and time.monotonic() < deadline:
            for message in client.consume(request["count"] - len(records), timeout=0.25):
                error = message.error()
                if error is not None:
                    raise from_kafka_error(error)
                headers = message.headers() or []
                timestamp = message.timestamp()[1]
                records.append(record(message.offset(), message.key(), message.value(), headers, timestamp))
        return {"records": records}
    finally:
        client.close()


def transact(request: Request) -> None:
    name = request["producer"]
    if name not in _transactional:
        _transactional[name] = producer(
            request, **{"transactional.id": request["transactional_id"], "message.timeout.ms": 60_000}
        )
        _transactional[name].init_transactions(CALL_SECONDS)
    client = _transactional[name]
    if request["begin"]:
        client.begin_transaction()
    for each in request["records"]:
        client.produce(
            request["topic"], value=decode(each["value"]), key=decode(each["key"]), partition=each["partition"]
        )
    client.flush()
    if request["offsets"] is not None:
        group, topic, partition, offset = request["offsets"]
        member = Consumer(
            {"bootstrap.servers": request["bootstrap"], "group.id": group, **librdkafka_security(request)}
        )
        metadata = member.consumer_group_metadata()
        client.send_offsets_to_transaction([TopicPartition(topic, partition, offset)], metadata, CALL_SECONDS)
        member.close()
    if request["end"] == "commit":
        client.commit_transaction(CALL_SECONDS)
    elif request["end"] == "abort":
        client.abort_transaction(CALL_SECONDS)


def list_topics(request: Request) -> dict[str, Any]:
    return {"topics": list(admin(request).list_topics(timeout=20).topics)}


def describe_topic(request: Request) -> dict[str, Any]:
    names = confluent_kafka.TopicCollection([request["topic"]])
    described = admin(request).describe_topics(names)[request["topic"]].result()
    return {
        "partitions": [
            {"id": each.id, "leader": each.leader.id, "replicas": [node.id for node in each.replicas]}
            for each in described.partitions
        ]
    }


def describe_configs(request: Request) -> dict[str, Any]:
    resource = ConfigResource(ResourceType.TOPIC, request["topic"])
    entries = admin(request).describe_configs([resource])[resource].result()
    return {"configs": {name: entry.value for name, entry in entries.items()}}


def alter_config(request: Request) -> None:
    entry = ConfigEntry(request["name"], request["value"], incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, request["topic"], incremental_configs=[entry])
    admin(request).incremental_alter_configs([resource])[resource].result()


def create_partitions(request: Request) -> None:
    new = NewPartitions(request["topic"], request["count"])
    admin(request).create_partitions([new])[request["topic"]].result()


def delete_topic(request: Request) -> None:
    admin(request).delete_topics([request["topic"]])[request["topic"]].result()


def delete_records(request: Request) -> dict[str, Any]:
    place = TopicPartition(request["topic"], request["partition"], request["offset"])
    (deleted,) = admin(request).delete_records([place]).values()
    return {"low_watermark": deleted.result().low_watermark}


def list_offsets(request: Request) -> dict[str, Any]:
    at = request["at"]
    specs = {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest, "max_timestamp": OffsetSpec.max_timestamp}
    spec = specs[at]() if isinstance(at, str) else OffsetSpec.for_timestamp(at)
    place = TopicPartition(request["topic"], request["partition"])
    (found,) = admin(request).list_offsets({place: spec}).values()
    return {"offset": found.result().offset}


def describe_cluster(request: Request) -> dict[str, Any]:
    described = admin(request).describe_cluster().result()
    return {
        "cluster_id": described.cluster_id,
        "controller": described.controller.id,
        "brokers": [{"id": node.id, "host": node.host, "port": node.port} for node in described.nodes],
    }


HANDLERS = {
    each.__name__: each
    for each in (
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
}

if __name__ == "__main__":
    serve(HANDLERS, to_client_error)
