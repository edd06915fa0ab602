"""The worked examples in examples/pipelines: run with a real broker and real Spark, checked against plain Python.

With MILLSTREAM_PICTURES=DIR each also draws its result to DIR/<example>.svg; the examples' result.svg are these.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from millstream.testing import EmbeddedBroker
from tests.system.examples import pictures as draw
from tests.system.examples.conftest import EXAMPLES, Example
from tests.waiting import TIMEOUT_SECONDS

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

pytestmark = pytest.mark.timeout(600)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def cents(value: Any) -> Decimal:
    return Decimal(str(value)).quantize(Decimal("0.01"))


@pytest.mark.parametrize("example", ["orders-revenue"], indirect=True)
def test_orders_revenue_counts_all_but_late_orders(example: Example, pictures: Path | None) -> None:
    """Two runs: what the second brings too late for the first one's watermark is not counted, all else is."""
    generate = example.generate
    stream = list(islice(generate.orders(START, timedelta(seconds=0.6)), 6000))
    example.client.create_topic("orders", partitions=3)
    parts = (stream[:4000], stream[4000:])
    for part in parts:
        example.client.publish_many("orders", ((order["shop"], order) for order in part))
        example.run()

    windows: dict[tuple[str, datetime], list[Decimal]] = defaultdict(list)
    watermark = datetime.min.replace(tzinfo=UTC)
    dropped = 0
    for part in parts:
        for order in part:
            begin = moment(order["at"]).replace(second=0, microsecond=0)
            if begin + MINUTE <= watermark:
                dropped += 1
            else:
                windows[order["shop"], begin].append(cents(order["amount"]))
        watermark = max(moment(order["at"]) for order in part) - 2 * MINUTE
    expected = {
        (shop, begin): (len(amounts), sum(amounts), max(amounts))
        for (shop, begin), amounts in windows.items()
        if begin + MINUTE <= watermark
    }
    assert dropped > 0, "the example is to show late orders"
    found = example.results("revenue-per-minute")
    assert len(found) == len(expected)  # nothing twice
    assert {
        (row["shop"], moment(row["window_start"])): (row["orders"], cents(row["revenue"]), cents(row["largest"]))
        for row in found
    } == expected
    if pictures:
        draw.revenue(pictures / "orders-revenue.svg", found)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["click-sessions"], indirect=True)
def test_click_sessions_are_found(example: Example, pictures: Path | None) -> None:
    generate = example.generate
    clicks = list(generate.clicks(START, 150))
    example.client.create_topic("clicks", partitions=3)
    for part in (clicks[:500], [*clicks[500:], generate.closing_click(START)]):
        example.client.publish_many("clicks", ((click["visitor"], click) for click in part))
        example.run()

    by_visitor: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for click in clicks:
        by_visitor[click["visitor"]].append((moment(click["at"]), click["page"]))
    expected = []
    for visitor, made in by_visitor.items():
        visit: list[tuple[datetime, str]] = []
        for click in [*sorted(made), None]:
            if visit and (click is None or click[0] >= visit[-1][0] + timedelta(minutes=30)):
                seconds = (visit[-1][0] - visit[0][0]).total_seconds()
                expected.append((visitor, visit[0][0], len(visit), visit[0][1], visit[-1][1], round(seconds, 3)))
                visit = []
            if click is not None:
                visit.append(click)
    found = example.results("visits")
    assert sorted(
        (row["visitor"], moment(row["began"]), row["clicks"], row["entered"], row["exited"], round(row["seconds"], 3))
        for row in found
    ) == sorted(expected)
    if pictures:
        draw.sessions(pictures / "click-sessions.svg", found)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["payments-orders"], indirect=True)
def test_payments_joined_to_orders(example: Example, pictures: Path | None) -> None:
    """The payment of an order of the first run may come in the second: its order waits in the state."""
    orders, payments = example.generate.orders_and_payments(START, 600)
    middle = START + timedelta(hours=1)
    for topic in ("shop-orders", "shop-payments"):
        example.client.create_topic(topic, partitions=2)
    for before in (True, False):
        for topic, rows, column in (("shop-orders", orders, "ordered_at"), ("shop-payments", payments, "paid_at")):
            part = [row for row in rows if (moment(row[column]) < middle) is before]
            example.client.publish_many(topic, ((row["order_id"], row) for row in part))
        example.run()

    placed = {order["order_id"]: order for order in orders}
    expected = {}
    for payment in payments:
        order = placed[payment["order_id"]]
        waited = moment(payment["paid_at"]) - moment(order["ordered_at"])
        if waited <= timedelta(minutes=10):
            in_full = cents(payment["paid"]) >= cents(order["amount"])
            expected[payment["payment_id"]] = (order["order_id"], round(waited.total_seconds(), 3), in_full)
    found = example.results("paid-orders")
    assert len(found) == len(expected) < len(payments)
    assert {
        row["payment_id"]: (row["order_id"], round(row["seconds_to_pay"], 3), row["in_full"]) for row in found
    } == expected
    if pictures:
        draw.payments(pictures / "payments-orders.svg", found)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["customer-enrichment"], indirect=True)
def test_enrichment_from_a_compacted_topic(example: Example, pictures: Path | None) -> None:
    """Each run sees the customers as they are then: changes and tombstones included."""
    generate = example.generate
    example.client.create_topic("customers", partitions=2, config={"cleanup.policy": "compact"})
    example.client.create_topic("purchases", partitions=3)
    customers: dict[str, dict[str, Any]] = {}
    expected = {}
    for seed, changes in ((1, generate.customer_changes(60)), (2, generate.later_changes(60))):
        rows = list(changes)
        example.client.publish_many("customers", rows)
        for key, row in rows:
            customers.pop(key, None)
            if row is not None:
                customers[key] = row
        bought = list(generate.purchases(400, 60, seed))
        example.client.publish_many("purchases", ((row["customer_id"], row) for row in bought))
        for purchase in bought:
            known = customers.get(purchase["customer_id"], {})
            rate = {"gold": Decimal("0.10"), "silver": Decimal("0.05")}.get(known.get("level", ""), Decimal(0))
            discount = (cents(purchase["amount"]) * rate).quantize(Decimal("0.01"), ROUND_HALF_UP)
            expected[purchase["purchase_id"]] = (known.get("name"), known.get("country", "unknown"), discount)
        example.run()
    found = example.results("purchases-enriched")
    assert len(found) == len(expected)
    assert {row["purchase_id"]: (row.get("name"), row["country"], cents(row["discount"])) for row in found} == expected
    if pictures:
        draw.countries(pictures / "customer-enrichment.svg", found)


RATES = {"EUR": Decimal("1.00"), "USD": Decimal("0.90"), "CHF": Decimal("1.05")}


@pytest.mark.parametrize("example", ["exactly-once-copy"], indirect=True)
def test_each_transfer_is_copied_once(example: Example, pictures: Path | None) -> None:
    """Each transfer is in one of the two topics, once, over several runs."""
    generate = example.generate
    example.client.create_topic("transfers", partitions=4)
    sent: list[bytes] = []
    for first in (1, 1001):
        part = list(generate.transfers(1000, first))
        sent += [value for _, value in part]
        example.client.publish_many("transfers", part)
        example.run()
    example.run()  # with nothing new

    expected, rejected = {}, Counter[bytes]()
    for value in sent:
        try:
            row = json.loads(value)
        except ValueError:
            rejected[value] += 1
            continue
        if row["amount"] > 0 and row["sender"] != row["receiver"] and row["currency"] in RATES:
            euro = (cents(row["amount"]) * RATES[row["currency"]]).quantize(Decimal("0.01"), ROUND_HALF_UP)
            expected[row["transfer_id"]] = (euro, row["amount"] >= 10000)
        else:
            rejected[row["transfer_id"].encode()] += 1
    records = list(example.client.consume("transfers-in-euro", "earliest", follow=False))
    found = [record.json() for record in records]
    assert len(found) == len(expected)
    assert {row["transfer_id"]: (cents(row["euro"]), row["large"]) for row in found} == expected
    assert all(
        record.header("rates") == b"2026-01" and record.key == record.json()["sender"].encode() for record in records
    )

    letters = list(example.client.consume("transfers-rejected", "earliest", follow=False))
    told = Counter[bytes]()
    for letter in letters:
        assert letter.header("millstream.pipeline") == b"exactly-once-copy"
        assert letter.header("millstream.reason")
        if letter.header("millstream.step") == b"checked":
            told[letter.json()["transfer_id"].encode()] += 1
        else:
            assert letter.raw is not None
            told[letter.raw] += 1  # the bytes as they came
    assert told == rejected
    if pictures:
        draw.transfers(pictures / "exactly-once-copy.svg", found, len(letters))


@pytest.mark.slow
@pytest.mark.parametrize("example", ["lake-ingestion"], indirect=True)
def test_lake_ingestion_with_a_new_column(example: Example, tmp_path: Path, pictures: Path | None) -> None:
    """The evolved pipeline goes on where the first ended; what was there has no value in the new column."""
    polars = pytest.importorskip("polars")
    generate = example.generate
    example.client.create_topic("readings", partitions=2)
    rows = []
    for file, days, humidity in (("pipeline.yaml", 0, False), ("evolved.yaml", 3, True)):
        part = list(generate.readings(START + timedelta(days=days), 600, humidity=humidity, seed=days + 1))
        rows += part
        example.client.publish_many("readings", ((row["sensor"], row) for row in part))
        example.run(file)
    table = polars.read_delta(str(tmp_path / "lake" / "readings"))
    expected = sorted(
        (row["sensor"], moment(row["at"]), row["celsius"], row.get("humidity"))
        for row in rows
        if -60 <= row["celsius"] <= 60
    )
    found = sorted(table.select("sensor", "at", "celsius", "humidity").rows())
    assert found == expected
    days_there = {path.name for path in (tmp_path / "lake" / "readings").iterdir() if "=" in path.name}
    assert len(days_there) == len({moment(row["at"]).date() for row in rows})
    letters = list(example.client.consume("lake-ingestion.dead-letters", "earliest", follow=False))
    assert len(letters) == len(rows) - len(expected)
    if pictures:
        draw.readings(pictures / "lake-ingestion.svg", found)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["lake-ingestion"], indirect=True)
def test_lake_ingestion_by_the_registry(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file twice: in between, the registry got a schema with a column more."""
    polars = pytest.importorskip("polars")
    from millstream.gateway.server import Gateway, GatewayOptions

    generate = example.generate
    example.client.create_topic("readings-avro", partitions=2)
    rows = []
    with Gateway(GatewayOptions(example.client.bootstrap_servers)) as gateway:
        monkeypatch.setenv("REGISTRY", gateway.url)
        for days, humidity in ((0, False), (3, True)):
            part = list(generate.readings(START + timedelta(days=days), 300, humidity=humidity, seed=days + 1))
            values = generate.as_avro(part, gateway.url, humidity=humidity)
            rows += part
            example.client.publish_many("readings-avro", values)
            example.run("registry.yaml")
    table = polars.read_delta(str(tmp_path / "lake" / "readings-avro"))
    assert sorted(table.select("sensor", "at", "celsius", "humidity").rows(), key=str) == sorted(
        ((row["sensor"], moment(row["at"]), row["celsius"], row.get("humidity")) for row in rows), key=str
    )


def test_every_example_has_what_a_reader_needs() -> None:
    from millstream.pipeline.definition import inspect
    from millstream.pipeline.project import examples

    names = [example.name for example in examples()]
    assert len(names) == 6
    for name in names:
        for file in ("pipeline.yaml", "generate.py", "README.md", "result.svg"):
            assert (EXAMPLES / name / file).is_file(), f"{name} lacks {file}"
        for path in (EXAMPLES / name).glob("*.yaml"):
            assert list(inspect(path).problems) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in sorted(EXAMPLES.iterdir()) if each.is_dir()])
def test_commands_of_the_page_run_as_printed(name: str, tmp_path: Path) -> None:
    """The first block of each README, line by line; none of the topics exists before."""
    directory = tmp_path / name
    shutil.copytree(EXAMPLES / name, directory)
    block = re.findall(r"```sh\n(.*?)```", (directory / "README.md").read_text(), re.DOTALL)[0]
    serve, *lines = [line.split("#")[0].strip() for line in block.splitlines() if line.strip()]
    assert serve == "millstream serve &"
    with EmbeddedBroker({"group.initial.rebalance.delay.ms": 0}) as broker:
        own = {"MILLSTREAM_BOOTSTRAP": broker.bootstrap_servers, "MILLSTREAM_STATE_HOME": str(tmp_path / "state")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        started = partial(subprocess.Popen, shell=True, cwd=directory, env={**os.environ, **own, "PATH": path})
        running: subprocess.Popen[str] | None = None
        output = ""
        try:
            for line in lines:
                command = line.removesuffix("&").strip()
                if command.startswith("millstream pipeline run") and "--once" not in command:
                    running = started(f"exec {command}", stdout=subprocess.DEVNULL)
                    continue
                deadline = time.monotonic() + 4 * TIMEOUT_SECONDS
                while True:
                    shown = started(command, stdout=subprocess.PIPE, text=True)
                    output = shown.communicate(timeout=4 * TIMEOUT_SECONDS)[0]
                    # A pipeline without end has its first results, and their topic, after a while.
                    if running is None or output or not command.startswith("millstream consume"):
                        break
                    assert running.poll() is None and time.monotonic() < deadline, "the pipeline has no result"
                assert shown.returncode == 0, command
            if running is not None:
                running.send_signal(signal.SIGINT)
                assert running.wait(2 * TIMEOUT_SECONDS) == 0
        finally:
            if running is not None and running.poll() is None:
                running.kill()
                running.wait()
        assert output.strip(), "the last command shows results"
