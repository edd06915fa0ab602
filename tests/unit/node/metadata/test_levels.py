"""Every format between nodes has a level: what is new cannot be forgotten, and is never written too early."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from uuid import UUID

import pytest

from millstream.formats.model.errors import KafkaError
from millstream.formats.protocol.schema import request_schema
from millstream.node.controller.active_controller import check_levels
from millstream.node.controller.controller_apis import FORWARDED_APIS
from millstream.node.metadata.features import METADATA_CHANGES, METADATA_VERSION, SUPPORTED_FEATURES
from millstream.node.metadata.image import BrokerRegistration
from millstream.node.metadata.levels import COORDINATOR_RECORDS, MESSAGES, OWN_FIELDS, RECORDS
from millstream.node.metadata.records import FeatureLevelRecord, NoOpRecord
from millstream.node.metadata.snapshot import snapshot_records
from tests.unit.node.metadata.cluster import Cluster

FORMATS = {
    "metadata": files("millstream.node.metadata").joinpath("metadata.schema"),
    "groups": files("millstream.node.groups.core").joinpath("group.schema"),
    "transactions": files("millstream.node.transactions.core").joinpath("transaction.schema"),
    "queues": files("millstream.node.queues.core").joinpath("share.schema"),
    "wire": files("millstream.formats.protocol").joinpath("wire.schema"),
}
FIRST_OWN_TAG = 10000


def entries(name: str) -> Iterator[tuple[str, str, int, list[str]]]:
    """Kind, name, newest version and lines of each entry of a schema file."""
    for block in FORMATS[name].read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            kind, _, entry, versions, *_ = lines[0].split()
            yield kind, entry, int(versions.split("-")[-1]), lines[1:]


def test_every_metadata_record_has_a_level_for_each_version() -> None:
    assert {name: len(levels) for name, levels in RECORDS.items()} == {
        name: newest + 1 for _, name, newest, _ in entries("metadata")
    }
    levels = {level for each in RECORDS.values() for level in each if level}
    assert levels <= set(METADATA_CHANGES)
    assert max(METADATA_CHANGES) <= METADATA_VERSION.max_supported_version


def test_every_record_of_a_coordinator_has_a_feature() -> None:
    found = {
        name: newest + 1
        for file in ("groups", "transactions", "queues")
        for kind, name, newest, _ in entries(file)
        if kind == "value"
    }
    assert {name: len(levels) for name, levels in COORDINATOR_RECORDS.items()} == found
    highest = {each.name: each.max_supported_version for each in SUPPORTED_FEATURES}
    assert all(each.level <= highest[each.feature] for levels in COORDINATOR_RECORDS.values() for each in levels)


def test_every_field_of_our_own_has_a_level() -> None:
    found = {
        f"{kind} {name} {line.split()[0]}"
        for file in FORMATS
        for kind, name, _, lines in entries(file)
        for line in lines
        for word in line.split()
        if word.startswith("tag:") and int(word.split(":")[1]) >= FIRST_OWN_TAG
    }
    assert found == set(OWN_FIELDS)


def test_every_message_between_nodes_has_its_newest_version_in_the_table() -> None:
    assert {name: request_schema(name).versions.high for name in MESSAGES} == MESSAGES
    assert not set(MESSAGES) & set(FORWARDED_APIS)


def test_what_the_level_of_the_cluster_does_not_allow_is_not_written() -> None:
    cluster = Cluster(2)
    (first, *_) = cluster.image.brokers.values()
    cordoned: BrokerRegistration = replace(first, cordoned_log_dirs=(UUID(int=9),))
    image = replace(cluster.image, brokers={**cluster.image.brokers, first.id: cordoned})
    records = [each for each in snapshot_records(image) if not isinstance(each, FeatureLevelRecord)]
    check_levels(records, {"metadata.version": 30})
    with pytest.raises(KafkaError, match=r"needs metadata\.version 30, and the cluster has 29"):
        check_levels(records, {"metadata.version": 29})
    # A record that raises the level allows those after it.
    check_levels([FeatureLevelRecord(name="metadata.version", feature_level=30), *records], {"metadata.version": 29})
    check_levels([NoOpRecord()], {})
