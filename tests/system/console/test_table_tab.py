"""The table of a topic in a real browser: no table, a table with its lag in seconds, a table that fails."""

import threading
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from millstream.raw_client import Cluster
from millstream.tables.copier import CopyOptions
from millstream.tables.server import ServeOptions, TableServer
from millstream.tables.settings import Warehouse
from millstream.testing import EmbeddedCluster
from tests.system.console.conftest import Looking
from tests.system.tables.conftest import run_here
from tests.waiting import until


def test_the_table_of_a_topic(
    looking: Looking, cluster: EmbeddedCluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    make_topic("shown-plain", 1)
    make_topic("shown-table", 1, **{"millstream.table": "delta"})
    make_topic("shown-failed", 1, **{"millstream.table": "delta", "millstream.table.columns": "registry"})
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for topic in ("shown-table", "shown-failed"):
        for number in range(12):
            producer.produce(topic, f"v{number}", f"k{number}")
    assert producer.flush(60) == 0
    copy = CopyOptions(
        warehouse=Warehouse(str(tmp_path)), bootstrap=cluster.bootstrap_servers, dead_letter_topic="shown-dead"
    )
    server = TableServer(ServeOptions(copy=copy, interval_s=0.2, discover_s=0.2), run_here)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with Cluster(cluster.bootstrap_servers) as raw:
            until(lambda: "millstream-tables" in raw.topics(["millstream-tables"]))
        page = looking.open("/topics?topic=shown-table&tab=table")
        looking.await_text("table-state", "running")
        looking.await_text("table-rows", "12")
        looking.await_text("table-lag", "0.0 s")
        looking.await_text("table-note", str(tmp_path / "shown-table"))
        assert page.get_by_test_id("table-error").inner_text() == ""
        looking.open("/topics?topic=shown-failed&tab=table")
        looking.await_text("table-state", "failed")
        looking.await_text("table-error", "needs the registry")
        page = looking.open("/topics?topic=shown-plain")
        page.get_by_test_id("tab-table").click()
        looking.await_text("table-note", "The topic is no table")
    finally:
        server.end()
        thread.join()
