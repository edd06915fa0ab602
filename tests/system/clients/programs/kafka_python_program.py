"""kafka-python behind the line protocol."""

from __future__ import annotations

import time
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import BrokerResponseError
from line_protocol import ClientError, Request, announce, decode, decode_headers, keyword_security, record, serve

MAX_MESSAGE_BYTES = 10_000_000

_admins: dict[str, KafkaAdminClient] = {}
_transactional: dict[str, KafkaProducer] = {}


def admin(request: Request) -> KafkaAdminClient:
    bootstrap = request["bootstrap"]
    if bootstrap not in _admins:
        _admins[bootstrap] = KafkaAdminClient(bootstrap_servers=bootstrap, **keyword_security(request))
    return _admins[bootstrap]


def to_client_error(error: Exception) -> ClientError:
    code = error.errno if isinstance(error, BrokerResponseError) else None
    return ClientError(type(error).__name__, code, str(error))


def hello(_: Request) -> dict[str, Any]:
    return {
        "client": f"kafka-python {kafka.__version__}",
        "codecs": ["none", "gzip", "snappy", "lz4", "zstd"],
        "lacks": {"null_header": "kafka-python refuses a header without a value (TypeError)"},
    }


def create_topic(request: Request) -> None:
    options = {"num_partitions": request["partitions"], "replication_factor": 1, "configs": request["config"]}
    admin(request).create_topics({request["topic"]: options}, wait_for_metadata=True)


def producer(request: Request, **settings: Any) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=request["bootstrap"],
        max_request_size=MAX_MESSAGE_BYTES,
        **keyword_security(request),
        **settings,
    )


def produce(request: Request) -> dict[str, Any]:
    codec = None if request["codec"] == "none" else request["codec"]
    client = producer(
        request,
        compression_type=codec,
        acks=request["acks"],
        enable_idempotence=request["idempotent"],
        linger_ms=5,
        # How long an unknown topic is waited for.
        max_block_ms=5000,
    )
    try:
        sent = [
            client.send(
                request["topic"],
                value=decode(each["value"]),
                key=decode(each["key"]),
                headers=decode_headers(each["headers"]),
                partition=each["partition"],
                timestamp_ms=each["timestamp"],
            )
            for each in request["records"]
        ]
        results: list[dict[str, Any]] = []
        for future in sent:
            try:
                metadata = future.get(timeout=30)
                results.append({"offset": None if request["acks"] == 0 else metadata.offset})
            except Exception as error:
                results.append({"error": to_client_error(error).as_json()})
        return {"results": results}
    finally:
        client.close()


def stream(request: Request) -> dict[str, Any]:
    client = producer(
        request,
        acks="all",
        enable_idempotence=True,
        linger_ms=0,
        batch_size=200,
        max_in_flight_requests_per_connection=5,
        retry_backoff_ms=50,
        delivery_timeout_ms=90_000,
    )
    try:
        sent = []
        for index in range(request["count"]):
            sent.append(client.send(request["topic"], value=b"record-%06d" % index, partition=request["partition"]))
            if index == request["announce_after"]:
                sent[0].get(timeout=90)
                announce("progress")
            if request["interval_us"]:
                time.sleep(request["interval_us"] / 1e6)
        return {"offsets": [future.get(timeout=90).offset for future in sent]}
    finally:
        client.close()


def consume(request: Request) -> dict[str, Any]:
    client = KafkaConsumer(
        bootstrap_servers=request["bootstrap"],
        **keyword_security(request),
        group_id=None,
        auto_offset_reset=request["reset"],
        isolation_level=request["isolation"],
        fetch_max_wait_ms=request["max_wait_ms"],
        request_timeout_ms=60_000 + request["max_wait_ms"],
    )
    try:
        place = TopicPartition(request["topic"], request["partition"])
        client.assign([place])
        start = request["start"]
        if isinstance(start, dict):
            client.seek(place, client.offsets_for_times({place: start["timestamp"]})[place].offset)
        elif start == "earliest":
            client.seek_to_beginning(place)
        elif start == "latest":
            client.seek_to_end(place)
        else:
            client.seek(place, start)
        if isinstance(start, str):
            client.position(place)
        announce("waiting")
        records: list[dict[str, Any]] = []
        deadline = time.monotonic() + request["timeout_ms"] / 1000
        while len(records) < request["count"] and time.monotonic() < deadline:
            for messages in client.poll(timeout_ms=250, max_records=request["count"] - len(records)).values():
                records += [
                    record(each.offset, each.key, each.value, each.headers, each.timestamp) for each in messages
                ]
        return {"records": records}
    finally:
        client.close()


def transact(request: Request) -> None:
    name = request["producer"]
    if name not in _transactional:
        _transactional[name] = producer(request, transactional_id=request["transactional_id"])
        _transactional[name].init_transactions()
    client = _transactional[name]
    if request["begin"]:
        client.begin_transaction()
    for each in request["records"]:
        client.send(request["topic"], value=decode(each["value"]), key=decode(each["key"]), partition=each["partition"])
    client.flush()
    if request["offsets"] is not None:
        group, topic, partition, offset = request["offsets"]
        client.send_offsets_to_transaction({TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}, group)
    if request["end"] == "commit":
        client.commit_transaction()
    elif request["end"] == "abort":
        client.abort_transaction()


def list_topics(request: Request) -> dict[str, Any]:
    return {"topics": admin(request).list_topics()}


def describe_topic(request: Request) -> dict[str, Any]:
    (described,) = admin(request).describe_topics([request["topic"]])
    if described["error_code"]:
        raise kafka.errors.for_code(described["error_code"])(request["topic"])
    return {
        "partitions": [
            {"id": each["partition_index"], "leader": each["leader_id"], "replicas": each["replica_nodes"]}
            for each in described["partitions"]
        ]
    }


def describe_configs(request: Request) -> dict[str, Any]:
    resource = ConfigResource(ConfigResourceType.TOPIC, request["topic"])
    described = admin(request).describe_configs([resource], config_filter="all")
    (by_name,) = described.values()
    return {"configs": {name: entry["value"] for name, entry in by_name[request["topic"]].items()}}


def alter_config(request: Request) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, request["topic"], {request["name"]: request["value"]})
    response = admin(request).alter_configs([resource])
    (by_name,) = response.values()
    if by_name[request["topic"]] not in ("OK", None):
        raise ClientError("AlterConfigs", None, str(by_name[request["topic"]]))


def create_partitions(request: Request) -> None:
    admin(request).create_partitions({request["topic"]: request["count"]})


def delete_topic(request: Request) -> None:
    admin(request).delete_topics([request["topic"]])


def delete_records(request: Request) -> dict[str, Any]:
    place = TopicPartition(request["topic"], request["partition"])
    response = admin(request).delete_records({place: request["offset"]})[place]
    return {"low_watermark": response["low_watermark"]}


def list_offsets(request: Request) -> dict[str, Any]:
    place = TopicPartition(request["topic"], request["partition"])
    sentinels = {"latest": -1, "earliest": -2, "max_timestamp": -3}
    at = sentinels.get(request["at"], request["at"])
    found = admin(request).list_partition_offsets({place: at})[place]
    return {"offset": found.offset}


def describe_cluster(request: Request) -> dict[str, Any]:
    described = admin(request).describe_cluster()
    return {
        "cluster_id": described["cluster_id"],
        "controller": described["controller_id"],
        "brokers": [
            {"id": each.get("broker_id", each.get("node_id")), "host": each["host"], "port": each["port"]}
            for each in described["brokers"]
        ],
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
