"""A table sink with `merge: spark`, as a command: `MERGE INTO` of Iceberg's own connector."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from millstream.client import Client, connect
from millstream.testing import EmbeddedBroker
from tools import lake_connectors
from tools.apache_kafka import ToolchainMissingError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PIPELINE = """
name: customers
bootstrap: ${MILLSTREAM_BOOTSTRAP}
spark:
  spark.jars: JARS
  spark.sql.catalog.lake: org.apache.iceberg.spark.SparkCatalog
  spark.sql.catalog.lake.type: hadoop
  spark.sql.catalog.lake.warehouse: WAREHOUSE
sources:
  changes: {topic: changes, format: json, schema: "id LONG, name STRING, version LONG, op STRING"}
sinks:
  copy: {from: changes, topic: copies, key: CAST(id AS STRING)}
  customers:
    from: changes
    table: lake.shop.customers
    format: iceberg
    mode: upsert
    keys: id
    sequence_by: version
    delete_when: op = 'd'
    merge: spark
"""


def test_a_pipeline_merges_into_a_table_of_the_catalog(tmp_path: Path) -> None:
    try:
        jars = ",".join(map(str, lake_connectors.iceberg()))
    except ToolchainMissingError as reason:
        pytest.skip(f"Iceberg's connector for Spark cannot be had here: {reason}")
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.replace("JARS", jars).replace("WAREHOUSE", str(tmp_path / "lake")))
    with EmbeddedBroker() as broker, connect(broker.bootstrap_servers) as client:
        client.create_topic("changes", partitions=2)
        _send(client, (1, "a", 1, "c"), (2, "b", 1, "c"), (3, "c", 1, "c"), (1, "a3", 3, "u"), (3, None, 5, "d"))
        _run(tmp_path, file, client)
        assert _rows(tmp_path) == [(1, "a3", 3), (2, "b", 1)]
        # Late: an update of 1, and one of 3, which is deleted since. New: 4, and 3 again.
        _send(client, (1, "a2", 2, "u"), (3, "c4", 4, "u"), (4, "d", 1, "c"), (2, None, 2, "d"))
        _run(tmp_path, file, client)
        assert _rows(tmp_path) == [(1, "a3", 3), (4, "d", 1)]
        _send(client, (3, "c6", 6, "c"))
        _run(tmp_path, file, client)
        assert _rows(tmp_path) == [(1, "a3", 3), (3, "c6", 6), (4, "d", 1)]
        assert len(list(client.consume("copies", follow=False))) == 10


def _send(client: Client, *changes: tuple[int, str | None, int, str]) -> None:
    rows = [dict(zip(("id", "name", "version", "op"), each, strict=True)) for each in changes]
    client.publish_many("changes", [(str(row["id"]), json.dumps(row)) for row in rows])


def _run(directory: Path, file: Path, client: Client) -> None:
    environment = os.environ | {
        "MILLSTREAM_BOOTSTRAP": client.bootstrap_servers,
        "MILLSTREAM_STATE_HOME": str(directory / "state"),
    }
    command = [sys.executable, "-m", "millstream", "pipeline", "run", str(file), "--once", "--json"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"


def _rows(directory: Path) -> list[tuple[object, ...]]:
    metadata = directory / "lake" / "shop" / "customers" / "metadata"
    version = (metadata / "version-hint.text").read_text().strip()
    table = StaticTable.from_metadata(str(metadata / f"v{version}.metadata.json"))
    rows = table.scan().to_arrow().to_pylist()
    return sorted((row["id"], row["name"], row["version"]) for row in rows)
