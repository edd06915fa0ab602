"""Customers in a compacted topic (with changes, and some who left), and what they bought.

python generate.py              # customers and purchases
python generate.py --changes    # then: some customers rise to gold, some leave; and more purchases
"""

import argparse
import os
import random
from collections.abc import Iterator
from typing import Any

import millstream

CUSTOMERS, PURCHASES = "customers", "purchases"
COUNTRIES = ("DE", "DE", "DE", "AT", "CH", "FR", "NL")
NAMES = ("Ada", "Berta", "Carl", "Dora", "Emil", "Frida", "Georg", "Hanna", "Ivo", "Jana")


def customer_changes(count: int, seed: int = 1) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Everybody as new, then some again with another level, then tombstones of those who left."""
    chance = random.Random(seed)
    rows = {
        f"c-{number:03}": {
            "name": f"{chance.choice(NAMES)} {number}",
            "country": chance.choice(COUNTRIES),
            "level": "basic",
        }
        for number in range(count)
    }
    yield from rows.items()
    for key, row in rows.items():
        if chance.random() < 0.3:
            yield key, {**row, "level": "silver"}
    for key in rows:
        if chance.random() < 0.05:
            yield key, None


def later_changes(count: int, seed: int = 2) -> Iterator[tuple[str, dict[str, Any] | None]]:
    chance = random.Random(seed)
    for number in range(count):
        draw = chance.random()
        if draw < 0.2:
            yield f"c-{number:03}", {"name": f"Gold {number}", "country": chance.choice(COUNTRIES), "level": "gold"}
        elif draw < 0.25:
            yield f"c-{number:03}", None


def purchases(count: int, customers: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    chance = random.Random(seed)
    for number in range(count):
        yield {
            "purchase_id": f"b-{seed}-{number:06}",
            "customer_id": f"c-{chance.randrange(customers + 5):03}",  # the last five are unknown
            "amount": round(chance.lognormvariate(3, 0.8), 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default=os.environ.get("MILLSTREAM_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--customers", type=int, default=200)
    parser.add_argument("--purchases", type=int, default=2000)
    parser.add_argument("--changes", action="store_true")
    arguments = parser.parse_args()
    with millstream.connect(arguments.bootstrap) as client:
        client.create_topic(CUSTOMERS, partitions=2, config={"cleanup.policy": "compact"}, exist_ok=True)
        client.create_topic(PURCHASES, partitions=3, exist_ok=True)
        changes = later_changes if arguments.changes else customer_changes
        sent = client.publish_many(CUSTOMERS, changes(arguments.customers))
        print(f"{sent:,} changes of customers in the topic {CUSTOMERS}")
        stream = purchases(arguments.purchases, arguments.customers, 2 if arguments.changes else 1)
        sent = client.publish_many(PURCHASES, ((row["customer_id"], row) for row in stream))
        print(f"{sent:,} purchases in the topic {PURCHASES}")


if __name__ == "__main__":
    main()
