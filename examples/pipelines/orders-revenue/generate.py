"""Orders of a few shops, some of them late: at once by default, or at a steady rate for watching.

python generate.py                          # an hour of orders, 6,000 of them, at once
python generate.py --rate 200 --speed 30    # for watching: 200 a second; the orders' clock runs 30 times as fast
"""

import argparse
import os
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import millstream
from millstream.client import Client

TOPIC = "orders"
SHOPS = ("Altona", "Bergedorf", "Eimsbüttel", "Harburg", "Wandsbek")
LATE = 0.04
"""Of the orders come up to 90 seconds late: in time for a watermark of two minutes."""
TOO_LATE = 0.005
"""Of the orders come ten minutes late: their minute has been counted by then."""


def orders(start: datetime, spacing: timedelta, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Orders in the order in which they arrive, for ever; the same for the same seed."""
    chance = random.Random(seed)
    waiting: list[tuple[datetime, dict[str, Any]]] = []
    at = start
    number = 0
    while True:
        number += 1
        at += spacing * chance.expovariate(1)
        draw = chance.random()
        delay = timedelta(0)
        if draw < TOO_LATE:
            delay = timedelta(minutes=10)
        elif draw < TOO_LATE + LATE:
            delay = timedelta(seconds=chance.uniform(5, 90))
        shop = chance.choices(SHOPS, weights=(8, 5, 4, 2, 1))[0]
        order = {
            "order_id": f"o-{number:07}",
            "shop": shop,
            "amount": round(chance.lognormvariate(3, 0.8), 2),
            "at": at.isoformat(timespec="milliseconds"),
        }
        waiting.append((at + delay, order))
        waiting.sort(key=lambda entry: entry[0])
        while waiting and waiting[0][0] <= at:
            yield waiting.pop(0)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default=os.environ.get("MILLSTREAM_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--count", type=int, default=6000, help="how many orders (default: %(default)s)")
    parser.add_argument("--rate", type=float, help="orders per second; without it, all at once")
    parser.add_argument("--speed", type=float, default=1.0, help="with --rate: how fast the orders' clock runs")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with millstream.connect(arguments.bootstrap) as client:
        client.create_topic(TOPIC, partitions=3, exist_ok=True)
        if arguments.rate is None:
            spacing = timedelta(hours=1) / arguments.count
            start = datetime.now(UTC) - timedelta(hours=1)
            stream = islice(orders(start, spacing, arguments.seed), arguments.count)
            sent = client.publish_many(TOPIC, ((order["shop"], order) for order in stream))
        else:
            spacing = timedelta(seconds=arguments.speed / arguments.rate)
            stream = islice(orders(datetime.now(UTC), spacing, arguments.seed), arguments.count)
            sent = send_steadily(client, stream, arguments.rate)
        print(f"{sent:,} orders in the topic {TOPIC}")


def send_steadily(client: Client, stream: Iterator[dict[str, Any]], rate: float) -> int:
    began, sent = time.monotonic(), 0
    while batch := list(islice(stream, max(1, round(rate / 10)))):
        sent += client.publish_many(TOPIC, ((order["shop"], order) for order in batch))
        time.sleep(max(0.0, began + sent / rate - time.monotonic()))
    return sent


if __name__ == "__main__":
    main()
