"""Orders, and the payments for them: most within minutes, some too late, some in parts, some never.

python generate.py                # two hours of orders, at once
python generate.py --orders 5000
"""

import argparse
import os
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import millstream

ORDERS, PAYMENTS = "shop-orders", "shop-payments"


def orders_and_payments(
    start: datetime, count: int, seed: int = 1
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Both in the order in which they happened."""
    chance = random.Random(seed)
    orders: list[dict[str, Any]] = []
    payments: list[dict[str, Any]] = []
    at = start
    for number in range(count):
        at += timedelta(hours=2) / count * chance.expovariate(1)
        amount = round(chance.lognormvariate(3, 0.8), 2)
        order = {
            "order_id": f"o-{number:06}",
            "customer": f"c-{chance.randrange(200):03}",
            "amount": amount,
            "ordered_at": at.isoformat(timespec="milliseconds"),
        }
        orders.append(order)
        kind = chance.random()
        if kind < 0.08:
            continue  # never paid
        parts = (amount,) if kind < 0.95 else (round(amount / 2, 2), round(amount - round(amount / 2, 2), 2))
        for part in parts:
            paid_at = at + timedelta(seconds=chance.expovariate(1 / 200))
            payments.append(
                {
                    "payment_id": f"p-{len(payments):06}",
                    "order_id": order["order_id"],
                    "paid": part,
                    "paid_at": paid_at.isoformat(timespec="milliseconds"),
                }
            )
    payments.sort(key=lambda payment: str(payment["paid_at"]))
    return orders, payments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default=os.environ.get("MILLSTREAM_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--orders", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    orders, payments = orders_and_payments(datetime.now(UTC) - timedelta(hours=2), arguments.orders, arguments.seed)
    with millstream.connect(arguments.bootstrap) as client:
        for topic, rows in ((ORDERS, orders), (PAYMENTS, payments)):
            client.create_topic(topic, partitions=3, exist_ok=True)
            sent = client.publish_many(topic, ((row["order_id"], row) for row in rows))
            print(f"{sent:,} records in the topic {topic}")


if __name__ == "__main__":
    main()
