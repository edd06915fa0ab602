"""Time of SQL queries over the newest million records: `python -m benchmarks.sql [--records N] [--tiny] [--save FILE]`.

One broker and a gateway on this machine, and a topic for each format: Avro, JSON Schema and Protobuf by the schema
registry, and JSON without a schema. Each query is run over HTTP (`POST /v1/sql`) and by the command (`millstream sql`,
with the start of Python). The target is a median below one second for each of them. `--rounds` runs of each; the
first, which is not counted, warms the page cache.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.console import gateway
from millstream.schemas.formats import Format, make_format
from millstream.schemas.registry_client import RegistryClient, Schema
from millstream.testing import EmbeddedBroker

PARTITIONS = 4
TARGET_SECONDS = 1.0
_ROWS_AT_ONCE = 20_000
_CUSTOMERS = 1000
_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order_id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "total", "type": "double"},
        {"name": "items", "type": "int"},
        {"name": "paid", "type": "boolean"},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
_JSON_TYPES = {
    "order_id": "integer",
    "customer": "string",
    "total": "number",
    "items": "integer",
    "paid": "boolean",
    "placed": "integer",
    "note": ["null", "string"],
}
_JSON = {
    "type": "object",
    "properties": {name: {"type": kind} for name, kind in _JSON_TYPES.items()},
    "required": ["order_id", "customer", "total"],
}
_PROTOBUF = """\
syntax = "proto3";
message Order {
  int64 order_id = 1;
  string customer = 2;
  double total = 3;
  int32 items = 4;
  bool paid = 5;
  int64 placed = 6;
  optional string note = 7;
}
"""
FORMATS: Mapping[str, str | None] = {
    "avro": json.dumps(_AVRO),
    "json-schema": json.dumps(_JSON),
    "protobuf": _PROTOBUF,
    "json": None,
}
QUERIES = {
    "count": "select count(*) from {topic}",
    "sum": "select sum(total) as total, avg(items) as items from {topic} where paid",
    "group": "select customer, count(*) as orders, sum(total) from {topic} group by all order by 3 desc limit 10",
    "find": "select * from {topic} where order_id = {middle}",
    "newest": "select * from {topic} limit 20",
}


def rows(first: int, count: int, *, has_times: bool) -> pa.StructArray:
    """Orders from a number on."""
    numbers = range(first, first + count)
    moment = pa.array([1_700_000_000_000 + 10 * number for number in numbers], pa.int64())
    columns = {
        "order_id": pa.array(numbers, pa.int64()),
        "customer": pa.array([f"customer-{number * 7919 % _CUSTOMERS:04d}" for number in numbers]),
        "total": pa.array([number * 31 % 100_000 / 100 for number in numbers], pa.float64()),
        "items": pa.array([number % 9 + 1 for number in numbers], pa.int32()),
        "paid": pa.array([number % 3 != 0 for number in numbers]),
        "placed": moment.cast(pa.timestamp("ms", "UTC")) if has_times else moment,
        "note": pa.array([None if number % 4 else f"leave it at door {number % 50}" for number in numbers]),
    }
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def fill(bootstrap: str, registry: RegistryClient, name: str, records: int) -> None:
    """Makes the topic of a format, and writes its records."""
    topic, text = topic_of(name), FORMATS[name]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)], operation_timeout=30)[topic].result(60)
    encode: Callable[[pa.StructArray], Any] = _json_lines
    if text is not None:
        kind = {"json-schema": "JSON"}.get(name, name.upper())
        registry.register(f"{topic}-value", Schema(text, kind))
        encode = _format(name, topic, registry).encode
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4"})
    for first in range(0, records, _ROWS_AT_ONCE):
        values = encode(rows(first, min(_ROWS_AT_ONCE, records - first), has_times=name == "avro"))
        for number, value in enumerate(values.to_pylist(), first):
            while True:
                try:
                    producer.produce(topic, value, key=b"%d" % number, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
    if producer.flush(300):
        raise SystemExit(f"the records of {topic} could not be written")


def topic_of(name: str) -> str:
    return f"bench_{name.replace('-', '_')}"


def _format(name: str, topic: str, registry: RegistryClient) -> Format:
    options = {"registry.url": registry.urls[0]}
    return make_format("json" if name == "json-schema" else name, role="value", topic=topic, options=options)


def _json_lines(orders: pa.StructArray) -> pa.Array:
    return pa.array([json.dumps(row).encode() for row in orders.to_pylist()], pa.binary())


def over_http(address: str, query: str) -> int:
    """Runs a query; the number of its rows."""
    request = urllib.request.Request(f"{address}/v1/sql", json.dumps({"query": query}).encode())
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return len(json.load(response)["rows"])
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{query}: {error.read().decode()}") from None


def by_command(bootstrap: str, address: str, query: str) -> int:
    arguments = ["sql", query, "--bootstrap", bootstrap, "--registry", address, "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "millstream", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise SystemExit(f"{query}: {done.stderr}")
    return len(done.stdout.splitlines())


def summary(results: Sequence[Mapping[str, Any]]) -> str:
    """A line for each format: the slowest query of each way, beside the target."""
    lines = ["| format | slowest over HTTP | slowest by the command | below 1 s |", "|---|---|---|---|"]
    for name in dict.fromkeys(each["format"] for each in results):
        rows = [each for each in results if each["format"] == name]
        http_s, command_s = (max(each[way] for each in rows) for way in ("http_s", "command_s"))
        below = {(True, True): "both", (True, False): "HTTP", (False, True): "command", (False, False): "none"}
        met = below[http_s < TARGET_SECONDS, command_s < TARGET_SECONDS]
        lines.append(f"| {name} | {http_s:.2f} s | {command_s:.2f} s | {met} |")
    return "\n".join(lines)


def measured(run: Callable[[], int], rounds: int) -> tuple[float, int]:
    """The median time in seconds, without that of the first run if there are others; and the number of rows."""
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        found = run()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:] or times), found


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sql", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="of each topic")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each query")
    parser.add_argument("--formats", default=",".join(FORMATS), help=f"of {', '.join(FORMATS)}")
    parser.add_argument("--tiny", action="store_true", help="a try in seconds; its figures mean nothing")
    parser.add_argument("--save", type=Path, help="write the figures to this file, as JSON")
    chosen = parser.parse_args(arguments)
    records, rounds = (200, 0) if chosen.tiny else (chosen.records, chosen.rounds)
    names = chosen.formats.split(",")
    if unknown := set(names) - set(FORMATS):
        parser.error(f"--formats {','.join(sorted(unknown))}: write {', '.join(FORMATS)}")
    results: list[dict[str, Any]] = []
    with EmbeddedBroker() as broker, gateway(broker.bootstrap_servers) as (address, _):
        bootstrap = broker.bootstrap_servers
        print(f"{records:,} records in each topic, {os.cpu_count()} processors; median seconds of {rounds} runs\n")
        print("| format | query | rows | HTTP | command |\n|---|---|---|---|---|")
        for name in names:
            fill(bootstrap, RegistryClient(address), name, records)
            for title, text in QUERIES.items():
                query = text.format(topic=topic_of(name), middle=records // 2)
                http_s, found = measured(partial(over_http, address, query), rounds)
                command_s, same = measured(partial(by_command, bootstrap, address, query), rounds)
                if found != same:
                    raise SystemExit(f"{query}: {found} rows over HTTP, {same} by the command")
                print(f"| {name} | {title} | {found} | {http_s:.2f} | {command_s:.2f} |", flush=True)
                results.append(
                    {"format": name, "query": title, "rows": found, "http_s": http_s, "command_s": command_s}
                )
    print(f"\n{summary(results)}")
    if chosen.save is not None:
        chosen.save.write_text(json.dumps(results, indent=2) + "\n")
    return results


if __name__ == "__main__":
    main()
