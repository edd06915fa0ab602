"""A server of tables whose topics come, fail, are repaired, go, and are made again."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from millstream.admin.tables import TableStatus, table_statuses
from millstream.admin.topics import ConfigChange, ConfigOperation, ConfigResource, TopicAdmin
from millstream.cli import exit_codes
from millstream.cli.table import app
from millstream.cli.terminal import CommandFailedError
from millstream.lake.errors import NoTableError
from millstream.raw_client import Cluster
from millstream.tables.copier import RunBatch
from millstream.tables.server import ServeOptions, TableServer
from millstream.tables.verification import verify
from millstream.testing import EmbeddedBroker
from tests.system.tables.conftest import make_topic, options_for, publish, rows_in, table_at
from tests.waiting import until


@contextmanager
def serving(broker: EmbeddedBroker, run: RunBatch, place: Path) -> Iterator[TableServer]:
    options = ServeOptions(copy=options_for(broker, place), interval_s=0.2, discover_s=0.2, parallel=2)
    server = TableServer(options, run)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.end()
        thread.join()


def _set(cluster: Cluster, topic: str, name: str, value: str) -> None:
    TopicAdmin(cluster).change(ConfigResource.TOPIC, topic, [ConfigChange(name, value, ConfigOperation.SET)])


def rows_at(path: Path) -> int:
    try:
        return len(rows_in(table_at(path)))
    except NoTableError:
        return 0


def check_that_topics_come_fail_and_go(
    broker: EmbeddedBroker, run: RunBatch, cluster: Cluster, tmp_path: Path, name: str
) -> None:
    later = f"{name}-later"
    first = make_topic(cluster, f"{name}-first", format="iceberg")
    cluster.create_topic(later, 1, 1)
    bad = make_topic(cluster, f"{name}-bad", 1, columns="registry")  # there is no registry
    for topic in (first, later, bad):
        publish(broker, topic, [(f"k{each}", f"v{each}") for each in range(50)])

    def status(topic: str) -> TableStatus | None:
        return table_statuses(cluster).get(topic)

    with serving(broker, run, tmp_path) as server:
        until(lambda: rows_at(tmp_path / first) == 50, "the first table")
        until(lambda: (found := status(bad)) is not None and found.state == "failed", "the failure")
        _set(cluster, later, "millstream.table", "delta")  # a topic becomes a table
        until(lambda: rows_at(tmp_path / later) == 50, "the second table")
        until(lambda: (found := status(first)) is not None and found.rows == 50 and found.lag_records == 0)
        shown = CliRunner().invoke(app, ["status", "-b", broker.bootstrap_servers])
        assert shown.exit_code == exit_codes.UNWELL, (shown.exit_code, shown.exception, shown.output)
        assert first in shown.output and "needs the registry" in shown.output
        metrics = server.reports.metrics()
        assert f'millstream_table_lag_seconds{{topic="{first}",format="iceberg"}} 0' in metrics
        assert f'millstream_table_failed{{topic="{bad}",format="delta"}} 1' in metrics
        _set(cluster, bad, "millstream.table.columns", "auto")  # the failure is repaired
        until(lambda: rows_at(tmp_path / bad) == 50, "the repaired table")
        _set(cluster, first, "millstream.table", "none")  # a table is not continued
        until(lambda: status(first) is None, "the end of the first table")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_topics([later])[later].result(30)
        until(lambda: status(later) is None, "the end of the deleted topic")
        make_topic(cluster, later, 1)
        publish(broker, later, [("k", "again")])
        until(lambda: any(rows_at(path) == 1 for path in tmp_path.glob(f"{later}-*")), "the topic that was made again")
    good = CliRunner().invoke(app, ["status", bad, "--json", "-b", broker.bootstrap_servers])
    (document,) = json.loads(good.output)
    assert good.exit_code == 0 and document["state"] == "stopped" and document["rows"] == 50
    unknown = CliRunner().invoke(app, ["status", "none", "-b", broker.bootstrap_servers]).exception
    assert isinstance(unknown, CommandFailedError) and unknown.exit_code == exit_codes.NOT_FOUND
    for topic in (first, later, bad):
        assert verify(table_at(tmp_path / topic), cluster).is_proven
