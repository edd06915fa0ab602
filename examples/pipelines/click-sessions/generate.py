"""Clicks of visitors who come, look at a few pages and go; some come again on the same day.

python generate.py                  # a day of clicks, at once
python generate.py --visitors 500
"""

import argparse
import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import millstream

TOPIC = "clicks"
PAGES = ("home", "search", "article", "article", "basket", "checkout", "help")


def clicks(start: datetime, visitors: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Clicks in the order in which they arrive: up to two minutes after they were made."""
    chance = random.Random(seed)
    arriving: list[tuple[datetime, dict[str, Any]]] = []
    for number in range(visitors):
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            at = start + timedelta(hours=chance.triangular(0, 24, 19))
            for _ in range(1 + int(chance.expovariate(0.2))):
                click = {
                    "visitor": f"v-{number:04}",
                    "page": chance.choice(PAGES),
                    "at": at.isoformat(timespec="milliseconds"),
                }
                arriving.append((at + timedelta(seconds=chance.uniform(0, 120)), click))
                at += timedelta(seconds=min(chance.expovariate(1 / 180), 1500))
    arriving.sort(key=lambda entry: entry[0])
    return (click for _, click in arriving)


def closing_click(start: datetime) -> dict[str, Any]:
    """A click of the next day: it moves the watermark on, so that the visits of the day are over."""
    at = start + timedelta(hours=30)
    return {"visitor": "nobody", "page": "home", "at": at.isoformat(timespec="milliseconds")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default=os.environ.get("MILLSTREAM_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--visitors", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    with millstream.connect(arguments.bootstrap) as client:
        client.create_topic(TOPIC, partitions=3, exist_ok=True)
        stream = [*clicks(start, arguments.visitors, arguments.seed), closing_click(start)]
        sent = client.publish_many(TOPIC, ((click["visitor"], click) for click in stream))
        print(f"{sent:,} clicks in the topic {TOPIC}")


if __name__ == "__main__":
    main()
