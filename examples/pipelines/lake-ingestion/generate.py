"""Readings of sensors over three days; those of a newer make (--humidity) tell one thing more.

python generate.py
python generate.py --humidity
"""

import argparse
import math
import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import millstream

TOPIC = "readings"
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default=os.environ.get("MILLSTREAM_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--humidity", action="store_true")
    arguments = parser.parse_args()
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    start = midnight - timedelta(days=3 if arguments.humidity else 6)
    stream = readings(start, arguments.count, humidity=arguments.humidity, seed=2 if arguments.humidity else 1)
    with millstream.connect(arguments.bootstrap) as client:
        client.create_topic(TOPIC, partitions=2, exist_ok=True)
        sent = client.publish_many(TOPIC, ((row["sensor"], row) for row in stream))
        print(f"{sent:,} readings in the topic {TOPIC}")


if __name__ == "__main__":
    main()
