"""Transfers between accounts; a few of them are no JSON, or make no sense.

python generate.py
python generate.py --count 100000 --first 5001    # more of them, with numbers from there on
"""

import argparse
import json
import os
import random
from collections.abc import Iterator

import millstream

TOPIC = "transfers"


def transfers(count: int, first: int = 1, seed: int = 1) -> Iterator[tuple[str, bytes]]:
    """Key and value, as they are sent."""
    chance = random.Random(seed * 1_000_003 + first)
    for number in range(first, first + count):
        sender, receiver = (f"a-{chance.randrange(500):03}" for _ in range(2))
        row = {
            "transfer_id": f"t-{number:07}",
            "sender": sender,
            "receiver": receiver,
            "amount": round(chance.lognormvariate(6, 1.5), 2),
            "currency": chance.choices(("EUR", "USD", "CHF", "XXX"), weights=(60, 25, 14, 1))[0],
        }
        draw = chance.random()
        if draw < 0.01:
            row["amount"] = -row["amount"]  # type: ignore[operator]
        value = json.dumps(row).encode()
        if 0.01 <= draw < 0.02:
            value = value[: len(value) // 2]  # cut off: no JSON
        yield sender, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default=os.environ.get("MILLSTREAM_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=1)
    arguments = parser.parse_args()
    with millstream.connect(arguments.bootstrap) as client:
        client.create_topic(TOPIC, partitions=4, exist_ok=True)
        sent = client.publish_many(TOPIC, transfers(arguments.count, arguments.first))
        print(f"{sent:,} transfers in the topic {TOPIC}")


if __name__ == "__main__":
    main()
