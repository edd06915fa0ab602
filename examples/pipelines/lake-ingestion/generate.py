"""Readings of sensors over three days; those of a newer make (--humidity) tell one thing more.

python generate.py
python generate.py --humidity
python generate.py --registry http://localhost:8081    # as Avro to the topic readings-avro, schema in the registry
"""

import argparse
import json
import math
import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import millstream

TOPIC, AVRO_TOPIC = "readings", "readings-avro"
SENSORS = ("roof", "cellar", "garden", "street")


def readings(start: datetime, count: int, *, humidity: bool = False, seed: int = 1) -> Iterator[dict[str, Any]]:
    chance = random.Random(seed)
    for number in range(count):
        at = start + timedelta(days=3) * number / count
        sensor = SENSORS[number % len(SENSORS)]
        warmth = 8 + 6 * math.sin((at.hour - 9) / 24 * 2 * math.pi) + chance.gauss(0, 1)
        row: dict[str, Any] = {
            "sensor": sensor,
            "at": at.isoformat(timespec="milliseconds"),
            "celsius": 999.9 if chance.random() < 0.01 else round(warmth, 1),
        }
        if humidity:
            row["humidity"] = round(min(1.0, max(0.0, chance.gauss(0.6, 0.1))), 2)
        yield row


def as_avro(rows: list[dict[str, Any]], registry: str, *, humidity: bool) -> list[bytes]:
    """Registered and encoded; a newer schema has a default, so that records of the older one can be read with it."""
    import pyarrow as pa

    from millstream.schemas import make_format

    fields: list[dict[str, Any]] = [
        {"name": "sensor", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "celsius", "type": "double"},
    ]
    if humidity:
        fields.append({"name": "humidity", "type": ["null", "double"], "default": None})
    schema = json.dumps({"type": "record", "name": "Reading", "fields": fields})
    encoder = make_format("avro", topic=AVRO_TOPIC, registry_url=registry, options={"schema": schema})
    typed = [{**row, "at": datetime.fromisoformat(row["at"])} for row in rows]
    encoded: list[bytes] = encoder.encode(pa.array(typed, encoder.arrow_type())).to_pylist()
    return encoded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default=os.environ.get("MILLSTREAM_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--humidity", action="store_true")
    parser.add_argument("--registry", metavar="URL")
    arguments = parser.parse_args()
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    start = midnight - timedelta(days=3 if arguments.humidity else 6)
    rows = list(readings(start, arguments.count, humidity=arguments.humidity, seed=2 if arguments.humidity else 1))
    topic, values = TOPIC, [json.dumps(row).encode() for row in rows]
    if arguments.registry:
        topic, values = AVRO_TOPIC, as_avro(rows, arguments.registry, humidity=arguments.humidity)
    with millstream.connect(arguments.bootstrap) as client:
        client.create_topic(topic, partitions=2, exist_ok=True)
        sent = client.publish_many(topic, ((row["sensor"], value) for row, value in zip(rows, values, strict=True)))
        print(f"{sent:,} readings in the topic {topic}")


if __name__ == "__main__":
    main()
