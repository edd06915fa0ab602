"""What the settings of a topic say about its table, and where it is."""

from uuid import UUID

import pytest

from millstream.config.setting import ConfigError
from millstream.lake.errors import LakeError, LakeOptionError
from millstream.raw_client import PartitionInfo, TopicInfo
from millstream.tables.settings import TopicTable, Warehouse, table_of

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
INFO = TopicInfo("orders.eu", UUID(ID), [PartitionInfo(0, 1, 0), PartitionInfo(1, 1, 0)], False)
TABLE = TopicTable(topic="orders.eu", topic_id=ID, format="iceberg", partitions=2)


def test_settings_of_a_topic() -> None:
    assert table_of(INFO, {}) is None and table_of(INFO, {"millstream.table": "none"}) is None
    assert table_of(INFO, {"millstream.table": "iceberg"}) == TABLE
    found = table_of(
        INFO,
        {
            "millstream.table": "delta",
            "millstream.table.mode": "upsert",
            "millstream.table.keys": "id,shop",
            "millstream.table.partition.by": "days(at)",
            "millstream.table.location": "/else",
        },
    )
    assert found is not None
    assert (found.is_upsert, found.keys, found.partition_by, found.location) == (
        True,
        ("id", "shop"),
        ("days(at)",),
        "/else",
    )
    with pytest.raises(ConfigError, match=r"millstream\.table"):
        table_of(INFO, {"millstream.table": "parquet"})


def test_a_table_has_a_path_or_a_catalog() -> None:
    options = Warehouse("/lake/").options_of(TABLE)
    assert (options.path, options.table_format, options.table) == ("/lake/orders.eu", "iceberg", None)
    assert dict(options.properties) == {"millstream.topic": "orders.eu", "millstream.topic.id": ID}
    catalog = {"catalog.type": "rest", "catalog.uri": "http://x", "s3.region": "eu-1"}
    named = Warehouse("s3://lake", catalog, "shop").options_of(TABLE)
    assert (named.table, named.path) == ("shop.orders_eu", "s3://lake/orders.eu")
    delta = Warehouse("s3://lake", catalog).options_of(
        TopicTable(topic="t", topic_id=ID, format="delta", location="s3://other/t")
    )
    assert (delta.path, delta.catalog, delta.s3.region) == ("s3://other/t", (), "eu-1")


def test_a_table_of_another_topic_gets_another_place() -> None:
    house = Warehouse("/lake")
    assert house.place(TABLE, lambda _: None).path == "/lake/orders.eu"
    assert house.place(TABLE, lambda _: ID).path == "/lake/orders.eu"
    assert house.place(TABLE, lambda _: "another").path == "/lake/orders.eu-0f8fad5b"
    with pytest.raises(LakeError, match="was not made by `millstream table serve`"):
        house.place(TABLE, lambda _: "")
    located = TopicTable(topic="t", topic_id=ID, format="delta", location="/mine")
    with pytest.raises(LakeOptionError, match="belongs to another topic"):
        house.place(located, lambda _: "another")
