"""Topics and their tables for tests: the real copier, with or without Spark around it."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.lake.options import parse_options
from millstream.lake.table import LakeTable, open_table
from millstream.raw_client import Cluster
from millstream.spark.options import parse_read_options
from millstream.spark.source.source import BatchReader, Rows
from millstream.tables.batch_writer import BatchWriter
from millstream.tables.copier import Copier, CopyOptions
from millstream.tables.settings import Warehouse, find_tables
from millstream.testing import EmbeddedBroker
from tests.system.spark.conftest import broker, spark

__all__ = ["broker", "spark"]
FORMATS = ("delta", "iceberg")
DEAD_LETTERS = "millstream-table-dead-letters"


@pytest.fixture(params=FORMATS)
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def cluster(broker: EmbeddedBroker) -> Cluster:
    return Cluster(broker.bootstrap_servers)


def run_here(options: Mapping[str, str], writer: BatchWriter) -> Iterable[bytes]:
    """What Spark's tasks do, in this process."""
    parsed = parse_read_options(options).for_batch()
    reader = BatchReader(parsed, Rows(parsed))
    return [
        batch.column("message")[0].as_py() for part in reader.partitions() for batch in writer(iter(reader.read(part)))
    ]


def make_topic(cluster: Cluster, name: str, partitions: int = 2, **settings: str) -> str:
    """`settings`: of the table, without their prefix; `format` is millstream.table itself."""
    given = {"millstream.table": settings.pop("format", "delta")}
    given |= {f"millstream.table.{key.replace('_', '.')}": value for key, value in settings.items()}
    cluster.create_topic(name, partitions, 1, given)
    return name


def publish(broker: EmbeddedBroker, topic: str, records: Iterable[tuple[Any, Any]], **more: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for key, value in records:
        producer.produce(topic, value, key, **more)
    assert producer.flush(60) == 0


def options_for(broker: EmbeddedBroker, place: Path | str, **more: Any) -> CopyOptions:
    given = more.pop("options", {})
    return CopyOptions(
        warehouse=Warehouse(str(place), given),
        bootstrap=broker.bootstrap_servers,
        dead_letter_topic=DEAD_LETTERS,
        **more,
    )


def copier_of(cluster: Cluster, topic: str, options: CopyOptions) -> Copier:
    return Copier(find_tables(cluster)[topic], options, cluster)


def copy_all(copier: Copier) -> None:
    """Batches until the table has everything."""
    while not copier.is_current(wanted := copier.next_plan()):
        copier.copy(run_here, wanted)


def table_at(path: Path | str, **options: str) -> LakeTable:
    return open_table(parse_options({"path": str(path), **options}))


def rows_in(table: LakeTable) -> list[dict[str, Any]]:
    scan = table.scan()
    return [row for batch in scan.read(scan.files) for row in batch.to_pylist()]


MakeTable = Callable[..., tuple[str, LakeTable]]
