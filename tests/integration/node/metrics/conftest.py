"""A broker with all kinds of traffic behind it, and what it tells of that; Prometheus, where it can be had."""

import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from millstream.admin.quotas import QuotaAdmin
from millstream.node.metrics.mirroring import MIRRORING
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tests import wire as wires
from tests.integration.node.broker.test_share import Group
from tests.integration.node.metrics import strict_text
from tests.repository import REPOSITORY
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

sys.path.insert(0, str(REPOSITORY / "tools"))
RECORDS = 300
ONLY_WITH_TLS = {
    "millstream_authentications_total",
    "millstream_certificate_expires_in_seconds",
    "millstream_tls_handshakes_failed_total",
    "millstream_tls_handshakes_total",
    "millstream_tls_handshakes_under_way",
}
"""Metrics of listeners with TLS or SASL; tests/system/cluster/test_tls.py reads those of TLS."""
ONLY_WITH_A_LINK = {family.name for family in MIRRORING.families}
"""Metrics of mirror links; tests/integration/node/mirror reads them."""


def get(address: str, path: str) -> tuple[int, str]:
    """Status and body; an error is a response like any other."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=TIMEOUT_SECONDS) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Scraped:
    """One page of metrics, read strictly."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = strict_text.parse(text)

    def __call__(self, sample: str, **labels: str) -> float:
        """The sum of all samples of that name that have these labels; fails if there is none."""
        found = self.matching(sample, **labels)
        assert found, f"no sample {sample}{labels}"
        return sum(found)

    def matching(self, sample: str, **labels: str) -> list[float]:
        wanted = set(labels.items())
        return [
            value
            for family in self.families.values()
            for (name, has), value in family.samples.items()
            if name == sample and wanted <= set(has)
        ]


Scrape = Callable[[], Scraped]


def scraper(address: str, query: str = "") -> Scrape:
    def scrape() -> Scraped:
        status, text = get(address, f"/metrics{query}")
        assert status == 200, text
        return Scraped(text)

    return scrape


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"num.partitions": 2}) as running:
        yield running
        log = running.log_file.read_text()
        assert "metrics_failed" not in log and "handler_failed" not in log, log[-3000:]


@pytest.fixture(scope="session")
def busy_broker(broker: EmbeddedBroker) -> EmbeddedBroker:
    """After a bit of everything."""
    servers: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(servers)
    compacted = NewTopic("compacted", 1, config={"cleanup.policy": "compact"})
    for made in admin.create_topics([NewTopic("orders", 2), NewTopic("jobs", 1), compacted]).values():
        made.result(TIMEOUT_SECONDS)
    with Cluster(broker.bootstrap_servers) as cluster:  # a quota that nothing exceeds, so that usage is counted
        QuotaAdmin(cluster).alter({"user": None}, {"producer_byte_rate": 1e12})
    producer = Producer({**servers, "acks": "all"})
    for number in range(RECORDS):
        producer.produce("orders", b"x" * 100, partition=0)
        producer.produce("compacted", b"y", key=str(number % 3).encode())
        producer.produce("jobs", b"z")
    assert producer.flush(TIMEOUT_SECONDS) == 0
    in_transactions = Producer({**servers, "transactional.id": "payments"})
    in_transactions.init_transactions(TIMEOUT_SECONDS)
    in_transactions.begin_transaction()
    in_transactions.produce("orders", b"paid", partition=1)
    in_transactions.commit_transaction(TIMEOUT_SECONDS)
    consumer = Consumer({**servers, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    read = 0
    while read < RECORDS:
        read += len(consumer.consume(RECORDS, timeout=1.0))
    consumer.commit(asynchronous=False)
    consumer.close()
    for _ in range(20):
        producer.produce("orders", b"more", partition=0)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    with Wire(broker.bootstrap_servers) as wire:
        workers = Group(wire, "jobs", "workers")
        workers.configure(**{"share.auto.offset.reset": "earliest"})
        workers.fetch(max_records=10)
        assert wire.produce("orders", wires.batch(b"lost"), partition=77).error_code
    return broker


@pytest.fixture(scope="session")
def scrape(busy_broker: EmbeddedBroker) -> Scrape:
    return scraper(busy_broker.bootstrap_servers)
