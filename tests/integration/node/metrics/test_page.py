"""The page of metrics of a broker that has worked: its format, its numbers, its table in the docs."""

import gzip
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.node.metrics.endpoints import SUBJECTS, SUCCESS, families, markdown
from millstream.node.metrics.partitions import PARTITIONS
from millstream.testing import EmbeddedBroker
from tests.integration.node.broker.test_share import Group
from tests.integration.node.metrics.conftest import (
    ONLY_WITH_A_LINK,
    ONLY_WITH_TLS,
    RECORDS,
    Scrape,
    Scraped,
    get,
    scraper,
)
from tests.repository import REPOSITORY
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

DOCUMENT = REPOSITORY / "docs" / "metrics.md"
NEEDS_TROUBLE = {
    "millstream_partition_unreadable_batch",
    "millstream_client_metric",
    "millstream_client_metrics_refused_total",
    *ONLY_WITH_TLS,
    *ONLY_WITH_A_LINK,
}
"""Families that a healthy broker without TLS, mirrors and subscriptions to client metrics has no samples of."""


def test_every_family_has_samples_and_no_other_appears(scrape: Scrape) -> None:
    page, asked = scrape(), {family.name for family in PARTITIONS.families}
    declared = {family.name: family for family in families()}
    assert set(page.families) == set(declared) - NEEDS_TROUBLE - asked  # single partitions are shown only if asked for
    for name, found in page.families.items():
        expected = set(declared[name].labels) | ({"le"} if found.kind == "histogram" else set())
        assert found.kind == declared[name].kind and found.label_names == expected, name


def test_promtool_finds_nothing_to_complain_of(scrape: Scrape) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: python -m tools.install_test_clients prometheus")
    checked = subprocess.run(["promtool", "check", "metrics"], input=scrape().text, text=True, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_traffic_is_counted_by_topic(scrape: Scrape) -> None:
    page = scrape()
    in_transaction = 1
    received = page("millstream_topic_received_records_total", topic="orders")
    assert received == RECORDS + in_transaction + 20
    assert page("millstream_topic_received_bytes_total", topic="orders") > RECORDS * 100
    assert page("millstream_topic_received_records_total", topic="compacted") == RECORDS
    assert RECORDS <= page("millstream_topic_sent_records_total", topic="orders") <= RECORDS + 25
    assert page("millstream_topic_sent_bytes_total", topic="orders") > RECORDS * 100
    assert page("millstream_topic_sent_records_total", topic="jobs") >= 10
    assert page("millstream_topic_replica_sent_bytes_total", topic="orders") == 0


def test_topics_at_rest_have_no_samples(busy_broker: EmbeddedBroker, scrape: Scrape) -> None:
    admin = AdminClient({"bootstrap.servers": busy_broker.bootstrap_servers})
    admin.create_topics([NewTopic("at-rest", 3, 1)])["at-rest"].result(TIMEOUT_SECONDS)
    assert "at-rest" not in scrape().text


def test_a_page_is_compressed_for_who_accepts_it(busy_broker: EmbeddedBroker) -> None:
    url = f"http://{busy_broker.bootstrap_servers}/metrics?collect[]=process"
    asked = urllib.request.Request(url, headers={"Accept-Encoding": "deflate, gzip;q=0.5"})
    with urllib.request.urlopen(asked, timeout=TIMEOUT_SECONDS) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        assert b"process_cpu_seconds_total" in gzip.decompress(response.read())
    asked = urllib.request.Request(url, headers={"Accept-Encoding": "gzip;q=0"})
    with urllib.request.urlopen(asked, timeout=TIMEOUT_SECONDS) as response:
        assert response.headers["Content-Encoding"] is None and b"process_cpu_seconds_total" in response.read()


def test_logs_are_measured_by_partition(busy_broker: EmbeddedBroker, scrape: Scrape) -> None:
    page = scraper(busy_broker.bootstrap_servers, "?collect[]=partitions")()
    first = {"topic": "orders", "partition": "0"}
    assert scrape()("millstream_topic_log_bytes", topic="orders") >= page("millstream_partition_log_bytes", **first)
    assert page("millstream_partition_log_end_offset", **first) == RECORDS + 20
    assert page("millstream_partition_high_watermark", **first) == RECORDS + 20
    assert page("millstream_partition_log_start_offset", **first) == 0
    assert page("millstream_partition_log_bytes", **first) > RECORDS * 100
    assert page("millstream_partition_in_sync_replicas", **first) == 1


def test_requests_are_timed_by_api(scrape: Scrape) -> None:
    page = scrape()
    for api in ("Produce", "Fetch", "Metadata", "ListOffsets", "JoinGroup", "EndTxn", "ShareFetch", "ApiVersions"):
        assert page("millstream_request_duration_seconds_count", server="broker", api=api) >= 1, api
    # The group's consumer has waited for records at least once.
    assert page("millstream_request_duration_seconds_sum", api="Fetch") > 0
    assert page("millstream_partition_errors_total", api="Produce", error="UNKNOWN_TOPIC_OR_PARTITION") >= 1


def test_groups_tell_how_far_they_are(scrape: Scrape) -> None:
    page, first = scrape(), {"group": "billing", "topic": "orders", "partition": "0"}
    committed = page("millstream_group_committed_offset", **first)
    assert committed >= RECORDS - 1
    assert page("millstream_group_lag_records", **first) == RECORDS + 20 - committed
    assert page("millstream_group_members", group="billing") == 0
    assert page("millstream_groups", type="classic", state="Empty") == 1
    assert page("millstream_transactions", state="CompleteCommit") == 1
    assert page("millstream_transaction_oldest_age_seconds") == 0


def test_share_groups_tell_what_is_left_to_do(scrape: Scrape, busy_broker: EmbeddedBroker) -> None:
    with Wire(busy_broker.bootstrap_servers) as wire:
        group, labels = Group(wire, "jobs", "porters"), {"group": "porters", "topic": "jobs", "partition": "0"}
        group.configure(**{"share.auto.offset.reset": "earliest"})
        group.fetch(max_records=10, batch_size=10)
        page = scrape()
        held = page("millstream_share_group_acquired_records", **labels)
        assert held >= 10
        assert page("millstream_share_group_backlog_records", **labels) == RECORDS
        group.acknowledge((0, 4, [1]))
        page = scrape()
        assert page("millstream_share_group_acquired_records", **labels) == held - 5
        assert page("millstream_share_group_backlog_records", **labels) == RECORDS - 5


def test_the_node_knows_itself(scrape: Scrape, broker: EmbeddedBroker) -> None:
    page = scrape()
    assert page("millstream_node_ready") == page("millstream_active_controller") == 1
    assert page("millstream_quorum_role", role="leader") == 1 and page("millstream_quorum_role") == 1
    assert page("millstream_quorum_leader_id") == 1
    assert page("millstream_quorum_high_watermark") == page("millstream_quorum_log_end_offset") > 0
    assert page("millstream_cluster_brokers", state="active") == 1
    assert page("millstream_cluster_offline_partitions") == page("millstream_under_min_isr_partitions") == 0
    assert page("millstream_connections") >= 1
    assert page("process_resident_memory_bytes") > 1 << 20
    assert page("process_open_fds") > 5
    assert page("millstream_disk_free_bytes") < page("millstream_disk_total_bytes")
    assert page("millstream_event_loop_lag_seconds_count") >= 1
    assert page("millstream_disk_sync_duration_seconds_count") >= 1
    assert page("millstream_gc_pause_seconds_count", generation="2") >= 1
    started = float(Path(f"/proc/{broker.pid}").stat().st_ctime)
    assert abs(page("process_start_time_seconds") - started) < 60


def test_counters_only_grow(scrape: Scrape) -> None:
    earlier, later = scrape(), scrape()
    for name, family in earlier.families.items():
        if family.kind != "gauge":
            for sample, value in family.samples.items():
                assert later.families[name].samples[sample] >= value, sample


def test_subjects_can_be_chosen(busy_broker: EmbeddedBroker) -> None:
    page = scraper(busy_broker.bootstrap_servers, "?collect[]=quorum&collect[]=topics")()
    chosen = {
        family.name for subject in SUBJECTS if subject.name in ("quorum", "topics") for family in subject.families
    }
    assert set(page.families) == chosen | {SUCCESS.name}
    assert page(SUCCESS.name) == 2
    status, text = get(busy_broker.bootstrap_servers, "/metrics?collect[]=quorums")
    assert status == 400 and "quorums" in text and "compaction" in text


def test_names_are_escaped(scrape: Scrape, busy_broker: EmbeddedBroker) -> None:
    """Group ids may hold anything."""
    from confluent_kafka import Consumer, TopicPartition

    group = 'a "quoted" \\ and\nbroken ü name'
    consumer = Consumer({"bootstrap.servers": busy_broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
    consumer.close()
    assert scrape()("millstream_group_committed_offset", group=group) == 7


def test_the_documented_table_is_the_true_one() -> None:
    text = DOCUMENT.read_text()
    begin, end = "<!-- begin: python -m millstream.node.metrics -->\n", "<!-- end -->"
    assert text.split(begin)[1].split(end)[0].strip() == markdown().strip()


def test_the_documented_table_of_the_gateway_is_the_true_one() -> None:
    from millstream.gateway.metrics import markdown

    begin, end = "<!-- begin: python -m millstream.gateway.metrics -->\n", "<!-- end: gateway -->"
    assert DOCUMENT.read_text().split(begin)[1].split(end)[0].strip() == markdown().strip()


def test_names_follow_the_conventions() -> None:
    for family in families():
        assert family.name.startswith(("millstream_", "process_")), family.name
        assert family.kind == "counter" or not family.name.endswith("_total"), family.name
        if family.kind == "histogram":
            assert family.name.endswith("_seconds"), family.name
        assert len(family.help) > 10 and family.help.endswith("."), family.name
    assert len({family.name for family in families()}) == len(families())


def test_the_strict_reader_is_strict() -> None:
    head = "# HELP a_total Text.\n# TYPE a_total counter\n"
    assert Scraped(head + 'a_total{l="x\\\\\\"\\n"} 1\n')("a_total", l='x\\"\n') == 1
    for wrong in (
        "a_total 1\n",
        head,
        head + "b_total 1\n",
        head + 'a_total{l="x} 1\n',
        head + "a_total 1\na_total 1\n",
    ):
        with pytest.raises(AssertionError):
            Scraped(wrong)
