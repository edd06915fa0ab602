"""Tables in the catalogs that people have: SQL on a real PostgreSQL, AWS Glue (moto), Iceberg REST (Apache's server).

Files are in a real S3 server (Versity's gateway). Each table is written in several commits, compacted, verified, and
read by pyiceberg through the catalog as another program would.
"""

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from millstream.raw_client import Cluster
from millstream.tables.verification import verify
from millstream.testing import EmbeddedBroker
from tests.postgresql import postgresql
from tests.s3_server import BUCKET, S3Server
from tests.system.tables.conftest import copier_of, copy_all, make_topic, options_for, publish, rows_in, table_at
from tools import iceberg_rest_server
from tools.apache_kafka import ToolchainMissingError

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore", "ignore::DeprecationWarning:moto"),
]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A real S3 server, as options."""
    try:
        server = S3Server(tmp_path_factory.mktemp("s3"))
    except ToolchainMissingError as reason:
        pytest.skip(str(reason))
    server.start()
    environment = server.environment()
    yield {
        "s3.endpoint": environment["AWS_ENDPOINT_URL"],
        "s3.access-key": environment["AWS_ACCESS_KEY_ID"],
        "s3.secret-key": environment["AWS_SECRET_ACCESS_KEY"],
        "s3.region": environment["AWS_REGION"],
    }
    server.kill()


def _keep_and_read(broker: EmbeddedBroker, cluster: Cluster, name: str, options: dict[str, str]) -> None:
    """Appends and upserts through the catalog, then verifies, and reads as others do."""
    place = f"s3://{BUCKET}/lake"
    catalog = load_catalog(
        "millstream",  # a SQL catalog has the tables under its own name
        **{key.removeprefix("catalog."): value for key, value in options.items() if key.startswith("catalog.")},
        **{
            "s3.endpoint": options["s3.endpoint"],
            "s3.access-key-id": options["s3.access-key"],
            "s3.secret-access-key": options["s3.secret-key"],
            "s3.region": options["s3.region"],
        },
    )
    for mode in ("append", "upsert"):
        topic = make_topic(cluster, f"{name}.{mode}", format="iceberg", mode=mode)
        copier = copier_of(cluster, topic, options_for(broker, place, options=options, compact_after=3))
        for begin in (0, 10, 20):
            publish(broker, topic, [(f"k{each % 4}", f"v{each}") for each in range(begin, begin + 10)])
            copy_all(copier)
        publish(broker, topic, [("k3", None)])
        copy_all(copier)
        copier.maintain()
        called = f"default.{name.replace('-', '_')}_{mode}"
        table = table_at(f"{place}/{topic}", table=called, **options)
        report = verify(table, cluster)
        assert report.is_proven, report.faults
        theirs: list[dict[str, Any]] = catalog.load_table(called).scan().to_arrow().to_pylist()
        assert len(theirs) == len(rows_in(table)) == (31 if mode == "append" else 3)
        if mode == "upsert":
            newest = {row["key"]: row["value"] for row in theirs}
            assert newest == {b"k0": b"v28", b"k1": b"v29", b"k2": b"v26"}


def test_delta_in_a_real_s3_server(broker: EmbeddedBroker, cluster: Cluster, s3: dict[str, str]) -> None:
    place = f"s3://{BUCKET}/delta"
    topic = make_topic(cluster, "delta-in-s3")
    copier = copier_of(cluster, topic, options_for(broker, place, options=s3))
    for _ in range(3):
        publish(broker, topic, [(f"k{each}", f"v{each}") for each in range(10)])
        copy_all(copier)
    report = verify(table_at(f"{place}/{topic}", **s3), cluster)
    assert report.is_proven and report.rows == 30


def test_tables_are_kept_in_a_catalog_on_postgresql(
    broker: EmbeddedBroker, cluster: Cluster, s3: dict[str, str]
) -> None:
    pytest.importorskip("psycopg2", reason="pip install psycopg2-binary")
    try:
        with postgresql() as address:
            uri = f"postgresql+psycopg2://postgres@{address}"
            _keep_and_read(broker, cluster, "in-postgresql", {**s3, "catalog.type": "sql", "catalog.uri": uri})
    except ToolchainMissingError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def glue() -> Iterator[str]:
    """AWS Glue by moto, over HTTP."""
    moto = pytest.importorskip("moto.server", reason="pip install 'moto[server]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from werkzeug.serving import make_server

        app = moto.DomainDispatcherApplication(moto.create_backend_app)
        server = make_server("127.0.0.1", 0, app, threaded=True)
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.mark.slow
def test_tables_are_kept_in_glue(broker: EmbeddedBroker, cluster: Cluster, s3: dict[str, str], glue: str) -> None:
    options = {
        **s3,
        "catalog.type": "glue",
        "catalog.glue.endpoint": glue,
        "catalog.glue.region": "us-east-1",
        "catalog.glue.access-key-id": "test",
        "catalog.glue.secret-access-key": "secret",
    }
    _keep_and_read(broker, cluster, "in-glue", options)


@pytest.mark.slow
def test_tables_are_kept_in_a_rest_catalog(
    broker: EmbeddedBroker, cluster: Cluster, s3: dict[str, str], tmp_path: Path
) -> None:
    try:
        with iceberg_rest_server.running(f"s3://{BUCKET}/rest", s3, tmp_path) as uri:
            _keep_and_read(broker, cluster, "in-rest", {**s3, "catalog.type": "rest", "catalog.uri": uri})
    except ToolchainMissingError as reason:
        pytest.skip(str(reason))
