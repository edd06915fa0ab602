"""Backups of tiered topics: references to the objects of the tier, which keep them; a restored cluster that reads the
same objects; and one with all records on its disks. The objects are encrypted."""

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from millstream.testing import EmbeddedBroker, EmbeddedCluster
from tests.integration.cli.conftest import Run
from tests.integration.cli.test_backup import created, essence, records
from tests.integration.node.tier.tiered_topic import (
    SETTINGS,
    SMALL,
    consume,
    local_logs,
    objects,
    produce,
    until_tiered,
    value_of,
)
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiered")


@pytest.fixture(scope="module")
def settings(place: Path) -> dict[str, object]:
    keys = place / "tier.keys"
    keys.write_text(f"first={base64.b64encode(os.urandom(32)).decode()}\n")
    return {
        **SETTINGS,
        "transaction.state.log.num.partitions": 1,
        "offsets.topic.num.partitions": 1,
        "millstream.tier.url": f"file://{place}/tier",
        "millstream.tier.encryption.key.file": str(keys),
        "millstream.tier.encryption.key.id": "first",
    }


@pytest.fixture(scope="module")
def broker(place: Path, settings: dict[str, object]) -> Iterator[EmbeddedCluster]:
    (place / "tier").mkdir()
    with EmbeddedCluster(1, settings) as running:
        yield running


@pytest.fixture
def command(offline: Run, broker: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", broker.bootstrap_servers)
    return offline


def make(servers: str, name: str) -> None:
    with Wire(servers) as wire:
        wire.create_topic(name, 1, **SMALL)


def ledger(servers: str, topic: str, name: str) -> None:
    """Transactions that are committed and aborted in turn; one of them reaches over several segments."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(TIMEOUT_SECONDS)
    for number in range(12):
        producer.begin_transaction()
        for part in range(60 if number == 5 else 6):
            producer.produce(topic, b"%d/%d " % (number, part) * 100, partition=0)
            if part % 10 == 9:
                assert producer.flush(TIMEOUT_SECONDS) == 0
        if number % 2:
            producer.abort_transaction(TIMEOUT_SECONDS)
        else:
            producer.commit_transaction(TIMEOUT_SECONDS)


def test_a_backup_refers_to_the_objects_of_the_tier_and_keeps_them(
    broker: EmbeddedCluster, place: Path, settings: dict[str, object], command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, repository, store = broker.bootstrap_servers, place / "backups", place / "tier"
    tier = ("--tier-url", f"file://{store}")
    keys = ("--tier-key-file", str(settings["millstream.tier.encryption.key.file"]))
    for name in ("history", "ledger"):
        make(servers, name)
    produce(servers, "history", range(2000))
    ledger(servers, "ledger", "books")
    for name in ("history", "ledger"):
        until_tiered(broker.data_dir(1), name)
    refused = command("backup", "create", repository, "--tier-url", f"file://{place}/other")
    assert refused.code == 1 and "the tier of the cluster is" in refused.err
    first = created(command("backup", "create", repository, *tier, "--json"))
    assert 0 < first["new_bytes"] < first["bytes"] // 3
    produce(servers, "history", range(2000, 3000))
    until_tiered(broker.data_dir(1), "history", 2500)
    second = created(command("backup", "create", repository, *tier, "--json"))
    assert second["bytes"] > first["bytes"] and second["new_bytes"] < second["bytes"] // 4
    before = [essence(each) for each in records(servers, "ledger")]
    # The topics are deleted: the objects of the backups stay.
    kept = set(objects(store))
    for name in ("history", "ledger"):
        assert command("topic", "delete", name).code == 0
    manifests = [path for path in store.rglob("manifest.json") if "backups" not in path.parts]
    until(lambda: not any(path.exists() for path in manifests), "the brokers have removed the topics from the tier")
    assert set(objects(store)) == kept
    assert command("tier", "status", "--url", tier[1], "--json").json() == []
    assert (
        command("tier", "sweep", "--url", tier[1], "--older-than", "0s", "--delete", "--json").json()["objects"] == []
    )
    refused = command("backup", "verify", repository)
    assert refused.code == 1 and "--tier-key-file" in refused.err
    for each in (first, second):
        assert command("backup", "verify", repository, "--id", each["id"], *keys).code == 0

    # A new cluster reads the same objects.
    node = f"7={place / 'new'}"
    assert command("backup", "restore", repository, "--node", node, *keys).code == 0
    assert len(local_logs(place / "new", "history")) == 1
    with EmbeddedBroker({**settings, "node.id": 7}, data_dir=place / "new") as new:
        assert values(new.bootstrap_servers, 3000) == [value_of(number) for number in range(3000)]
        assert [essence(each) for each in records(new.bootstrap_servers, "ledger")] == before
        ledger(new.bootstrap_servers, "ledger", "books")
        assert len(records(new.bootstrap_servers, "ledger")) == 2 * len(before)
        produce(new.bootstrap_servers, "history", range(3000, 4000))
        until_tiered(place / "new", "history", 3500)
        # The backups are deleted: the objects are those of the new cluster now.
        assert command("backup", "delete", repository, "--keep", 1).code == 0
        assert command("backup", "verify", repository, *keys).code == 0
        assert command("backup", "delete", repository, second["id"]).code == 0
        assert not list(store.rglob("backups/*/*/*.json"))
        found = command("tier", "sweep", "--url", tier[1], "--older-than", "0s", "--delete", "--json").json()["objects"]
        assert not any(str(path.relative_to(store)) in found for path in kept)
        assert values(new.bootstrap_servers, 4000) == [value_of(number) for number in range(4000)]
        monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", new.bootstrap_servers)
        assert command("topic", "delete", "history").code == 0
        until(lambda: not any("history" in each for each in topics_of(store, command)), "the objects are deleted")
        until(lambda: len(kept.intersection(objects(store))) < len(kept) // 2)


def topics_of(store: Path, command: Run) -> list[str]:
    return [str(row["topic"]) for row in command("tier", "status", "--url", f"file://{store}", "--json").json()]


def values(servers: str, count: int) -> list[bytes | None]:
    return [each.value() for each in consume(servers, "history", count)]


def test_all_records_are_restored_to_the_disks(
    broker: EmbeddedCluster, place: Path, settings: dict[str, object], command: Run, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    make(servers, "history")
    produce(servers, "history", range(1500))
    until_tiered(broker.data_dir(1), "history")
    ledger_ = "journal"
    make(servers, ledger_)
    ledger(servers, ledger_, "journals")
    until_tiered(broker.data_dir(1), ledger_)
    before = [essence(each) for each in records(servers, ledger_)]
    keys = ("--tier-key-file", str(settings["millstream.tier.encryption.key.file"]))
    for name, options in (("copies", ()), ("references", ("--tier-url", f"file://{place}/tier"))):
        made = created(command("backup", "create", tmp_path / name, *options, "--json"))
        assert (made["tier"] is None) == (name == "copies")
        restored = command(
            "backup", "restore", tmp_path / name, "--all-to-disks", *keys, "--node", f"3={tmp_path / f'new-{name}'}"
        )
        assert restored.code == 0, restored.err
        assert len(local_logs(tmp_path / f"new-{name}", "history")) > 5
        # The new cluster has a tier of its own.
        own = {**settings, "millstream.tier.url": f"file://{tmp_path}/tier-{name}", "node.id": 3}
        with EmbeddedBroker(own, data_dir=tmp_path / f"new-{name}") as new:
            until_tiered(tmp_path / f"new-{name}", "history", 1000)
            assert values(new.bootstrap_servers, 1500) == [value_of(number) for number in range(1500)]
            assert [essence(each) for each in records(new.bootstrap_servers, ledger_)] == before
