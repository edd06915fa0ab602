"""`millstream tier`: what is in the store, segments as files, orphans, and topics restored in a new cluster."""

import base64
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.admin import Admin
from millstream.node.runtime.object_store import DirectoryStore
from millstream.node.storage.object_store import StoredObject
from millstream.testing import EmbeddedBroker, EmbeddedCluster
from tests.integration.cli.conftest import Run
from tests.integration.node.tier.tiered_topic import (
    SETTINGS,
    consume,
    make_tiered,
    objects,
    produce,
    until_tiered,
    value_of,
)
from tests.s3_server import FaultyStore, s3  # noqa: F401  # s3 is a fixture
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire
from tools import apache_kafka


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def tiered(store: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({**SETTINGS, "millstream.tier.url": f"file://{store}"}) as running:
        make_tiered(running.bootstrap_servers, "orders")
        produce(running.bootstrap_servers, "orders", range(1000))
        until_tiered(running.data_dir, "orders")
        yield running


def test_status_shows_what_is_in_the_store(tiered: EmbeddedBroker, store: Path, offline: Run) -> None:
    (row,) = offline("tier", "status", "--url", f"file://{store}", "--json").json()
    assert (row["topic"], row["partition"], row["log_start_offset"]) == ("orders", 0, 0)
    assert row["segments"] == len(objects(store)) and row["end_offset"] > 800
    shown = offline("tier", "status", "orders", "--url", f"file://{store}")
    assert shown.code == 0 and "orders" in shown.out
    missing = offline("tier", "status", "nothing", "--url", f"file://{store}")
    assert missing.code == 4 and "nothing" in missing.err


def test_status_leaves_out_a_topic_that_is_deleted_while_it_reads(
    tiered: EmbeddedBroker, store: Path, offline: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    whole = DirectoryStore.list

    async def list_then_delete(self: DirectoryStore, prefix: str) -> list[StoredObject]:
        found = await whole(self, prefix)
        for path in copy.rglob("manifest.json"):
            path.unlink()
        return found

    monkeypatch.setattr(DirectoryStore, "list", list_then_delete)
    shown = offline("tier", "status", "--url", f"file://{copy}", "--json")
    assert shown.code == 0, shown.err
    assert shown.json() == []


def test_kafka_reads_a_segment_from_the_store(
    tiered: EmbeddedBroker, store: Path, offline: Run, tmp_path: Path
) -> None:
    got = offline("tier", "get", "orders", "--url", f"file://{store}", "--offset", "500", "--to", tmp_path)
    assert got.code == 0, got.err
    (log,) = tmp_path.glob("*.log")
    assert int(log.name[:20]) <= 500
    assert {path.suffix for path in tmp_path.iterdir()} >= {".log", ".index", ".timeindex", ".snapshot"}
    checked = offline("log", "dump", "--check", tmp_path)
    assert checked.code == 0, checked.out + checked.err
    try:
        kafka = apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Apache Kafka's tools: {reason}")
    done = kafka.run(
        apache_kafka.DUMP_LOG_SEGMENTS,
        "--files",
        ",".join(str(path) for path in sorted(tmp_path.iterdir()) if path.suffix != ""),
        "--deep-iteration",
        performance=apache_kafka.QUICK_START_OPTIONS,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert not re.search("corrupt|exception|isvalid: false|mismatch", said, re.IGNORECASE), said
    assert re.search(r"offset: 500 ", said)


def test_orphans_are_found_and_deleted(tiered: EmbeddedBroker, store: Path, offline: Run) -> None:
    real = objects(store)
    orphan = real[0].with_name(f"{7:020d}-{0:010d}-abc.segment")
    orphan.write_bytes(b"left by a leader that was killed")
    (cluster,) = [path for path in store.iterdir() if path.is_dir()]
    gone = cluster / "00000000-0000-0000-0000-00000000abcd" / "0" / "x.segment"
    gone.parent.mkdir(parents=True)
    gone.write_bytes(b"of a deleted topic")
    arguments = ["tier", "sweep", "--url", f"file://{store}", "--bootstrap", tiered.bootstrap_servers]
    assert offline(*arguments, "--json").json()["objects"] == [], "they are too young"
    found = offline(*arguments, "--older-than", "0s", "--json").json()
    assert len(found["objects"]) == 2 and orphan.exists()
    deleted = offline(*arguments, "--older-than", "0s", "--delete")
    assert deleted.code == 0 and not orphan.exists() and not gone.exists()
    assert objects(store) == real
    assert len(consume(tiered.bootstrap_servers, "orders", 1000)) == 1000


def _write_transactions(servers: str, first: int) -> list[tuple[int, bytes]]:
    """Some committed, some aborted; returns offset and value of the committed records."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "restored", "log_level": 0})
    producer.init_transactions(TIMEOUT_SECONDS)
    wanted: list[tuple[int, bytes]] = []
    for number in range(10):
        producer.begin_transaction()
        sent: list[tuple[int, bytes]] = []
        for part in range(30):
            producer.produce(
                "orders",
                value_of(first + number * 30 + part),
                partition=0,
                on_delivery=lambda _, message, sent=sent: sent.append((message.offset(), message.value())),  # type: ignore[misc]
            )
        assert producer.flush(TIMEOUT_SECONDS) == 0
        if number % 3:
            producer.commit_transaction(TIMEOUT_SECONDS)
            wanted += sent
        else:
            producer.abort_transaction(TIMEOUT_SECONDS)
    return wanted


def test_encrypted_topics_are_restored_from_the_bucket_alone(
    s3: FaultyStore,  # noqa: F811
    tmp_path: Path,
    offline: Run,
) -> None:
    """On three new nodes, with every committed record of the store, under two keys; and `tier get` decrypts."""
    keys = tmp_path / "tier.keys"
    keys.write_text("".join(f"{name}={base64.b64encode(name.encode() * 16).decode()}\n" for name in ("k1", "k2")))
    settings = {**SETTINGS, "millstream.tier.url": s3.url, "millstream.tier.encryption.key.file": str(keys)}
    with EmbeddedBroker({**settings, "millstream.tier.encryption.key.id": "k1"}) as lost:
        servers = lost.bootstrap_servers
        make_tiered(servers, "orders", {"max.message.bytes": "900000"})
        produce(servers, "orders", range(1000))
        until_tiered(lost.data_dir, "orders")
        _set_broker(servers, "millstream.tier.encryption.key.id", "k2")
        committed = [(n, value_of(n)) for n in range(1000)] + _write_transactions(servers, 1000)
        end = until_tiered(lost.data_dir, "orders", 1000)
        committed = [row for row in committed if row[0] < end]
    used = {each["keyId"] for each in _manifest(s3)["segments"]}
    assert used == {"k1", "k2"}
    assert not any(value_of(500)[:40] in path.read_bytes() for path in s3.segments()), "no record is readable"

    get = ["tier", "get", "orders", "--url", s3.url, "--offset", "500", "--to", tmp_path / "got"]
    refused = offline(*get)
    assert refused.code == 1 and "encrypted with the key 'k1'" in refused.err and "--key-file" in refused.err
    got = offline(*get, "--key-file", keys)
    assert got.code == 0, got.err
    checked = offline("log", "dump", "--check", tmp_path / "got")
    assert checked.code == 0, checked.out + checked.err

    with EmbeddedCluster(settings={**settings, "offsets.topic.replication.factor": "1"}) as cluster:
        servers = cluster.bootstrap_servers
        arguments = ["tier", "restore", "--url", s3.url, "--bootstrap", servers]
        missing = offline(*arguments, "nothing")
        assert missing.code == 4, missing.err
        done = offline(*arguments, "--replication-factor", "3")
        assert done.code == 0, done.err
        found = consume(servers, "orders", len(committed), isolation="read_committed")
        assert [(each.offset(), each.value()) for each in found] == committed
        assert {each.leader_epoch() for each in found} == {0}, "the epochs of the lost cluster mean nothing here"
        produce(servers, "orders", range(end, end + 500))
        found = consume(servers, "orders", 500, first=end)
        assert [(each.offset(), each.value()) for each in found] == [(n, value_of(n)) for n in range(end, end + 500)]
        again = offline(*arguments)
        assert again.code == 5, again.err


def _manifest(s3: FaultyStore) -> dict[str, Any]:  # noqa: F811
    (path,) = [path for path in s3.server.objects.rglob("manifest.json") if path.is_file()]
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _set_broker(servers: str, name: str, value: str) -> None:
    """For all brokers, while they run."""
    config = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 4, "resource_name": "", "configs": [config]}
    with Wire(servers) as wire:
        response = wire.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
        (row,) = response.responses
        assert row.error_code == 0, row


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://", "it must be a URL with s3://, gs:// or az:// and a bucket"),
        ("file://here", "file:/// and the path of a directory"),
        ("http://store/bucket", "it must be a URL with s3://"),
        ("file:///dev/null/tier", "millstream.tier.url=file:///dev/null/tier: the directory cannot be made"),
        ("az://container", "Account must be specified"),
    ],
)
def test_a_url_that_cannot_be_used_is_named(url: str, problem: str, offline: Run) -> None:
    shown = offline("tier", "status", "--url", url)
    assert shown.code == 1 and problem in shown.err and "Traceback" not in shown.err


def test_a_broker_says_which_directory_cannot_be_made() -> None:
    with pytest.raises(Exception, match=r"millstream.tier.url=file:///dev/null/tier: the directory cannot be made"):
        EmbeddedBroker({**SETTINGS, "millstream.tier.url": "file:///dev/null/tier"}).start()


def test_a_broker_without_its_key_says_so(tmp_path: Path) -> None:
    keys = tmp_path / "tier.keys"
    keys.write_text(f"old={base64.b64encode(bytes(32)).decode()}\n")
    settings = {
        **SETTINGS,
        "millstream.tier.url": f"file://{tmp_path}/store",
        "millstream.tier.encryption.key.file": str(keys),
        "millstream.tier.encryption.key.id": "new",
    }
    with pytest.raises(Exception, match=r"the key 'new' is not in the key file .*, which has old: add it there"):
        EmbeddedBroker(settings).start()


def test_a_lost_cluster_that_has_its_id_again_keeps_its_tier(tmp_path: Path, offline: Run) -> None:
    store = tmp_path / "store"
    sweeps = {"millstream.tier.sweep.interval.ms": "200", "millstream.tier.sweep.age.ms": "0"}
    settings = {**SETTINGS, **sweeps, "millstream.tier.url": f"file://{store}", "cluster.id": "AAAAAAAAAAAAAAAAAAAABQ"}
    with EmbeddedBroker(settings) as lost:
        make_tiered(lost.bootstrap_servers, "orders")
        produce(lost.bootstrap_servers, "orders", range(1000))
        end = until_tiered(lost.data_dir, "orders")
    kept = objects(store)
    with EmbeddedBroker(settings) as again:
        left = kept[0].parents[2] / "00000000-0000-0000-0000-00000000abcd" / "0" / "left.segment"
        left.parent.mkdir(parents=True)
        left.write_bytes(b"left by a leader that was killed")
        until(lambda: not left.exists(), "the sweeper has run")
        assert objects(store) == kept
        arguments = ["tier", "restore", "--url", f"file://{store}", "--bootstrap", again.bootstrap_servers]
        done = offline(*arguments, "--cluster-id", "AAAAAAAAAAAAAAAAAAAABQ")
        assert done.code == 0, done.err
        swept = offline(
            "tier", "sweep", "--url", f"file://{store}", "--bootstrap", again.bootstrap_servers, "--older-than", "0s",
            "--delete", "--json",
        )  # fmt: skip
        assert [name.rpartition("/")[2] for name in swept.json()["objects"]] == ["manifest.json"]
        found = consume(again.bootstrap_servers, "orders", end)
        assert [(each.offset(), each.value()) for each in found] == [(n, value_of(n)) for n in range(end)]


@pytest.mark.parametrize("is_parent_deleted", [False, True])
def test_branches_of_a_lost_cluster_are_restored(tmp_path: Path, offline: Run, is_parent_deleted: bool) -> None:
    store = tmp_path / "store"
    settings = {**SETTINGS, "millstream.tier.url": f"file://{store}"}
    with EmbeddedBroker(settings) as lost, Admin(lost.bootstrap_servers) as admin:
        servers = lost.bootstrap_servers
        make_tiered(servers, "orders")
        produce(servers, "orders", range(1000))
        end = until_tiered(lost.data_dir, "orders")
        (point,) = admin.topics.branch("orders", "test", offsets={("orders", 0): end // 2}).points  # type: ignore[dict-item]
        assert 0 < point.offset <= end // 2
        produce(servers, "test", range(2000, 3000))  # records of its own, in objects of its own
        test_end = until_tiered(lost.data_dir, "test", point.offset)
        if is_parent_deleted:
            admin.topics.delete("orders")
            until(lambda: offline("tier", "status", "orders", "--url", f"file://{store}").code == 4)
    own = [(n, value_of(n if n < point.offset else 2000 + n - point.offset)) for n in range(test_end)]
    with EmbeddedBroker(settings) as new, Admin(new.bootstrap_servers) as admin:
        servers = new.bootstrap_servers
        done = offline("tier", "restore", "--url", f"file://{store}", "--bootstrap", servers)
        assert done.code == 0, done.err
        if not is_parent_deleted:
            assert len(consume(servers, "orders", end)) == end
            # The objects that only the parent had go; those that the branch names stay.
            before = len(objects(store))
            admin.topics.delete("orders")
            until(lambda: len(objects(store)) < before, "no object was deleted")
        assert [(each.offset(), each.value()) for each in consume(servers, "test", test_end)] == own
        admin.topics.delete("test")
        until(lambda: not objects(store), "objects that no topic names are left")


@pytest.mark.slow
def test_a_lost_disk_is_replaced_by_the_tier(tmp_path: Path) -> None:
    settings = {**SETTINGS, "millstream.tier.url": f"file://{tmp_path}/store"}
    with EmbeddedBroker(settings) as broker:
        make_tiered(broker.bootstrap_servers, "kept")
        produce(broker.bootstrap_servers, "kept", range(1000))
        end = until_tiered(broker.data_dir, "kept")
        broker.stop()
        shutil.rmtree(broker.data_dir / "kept-0")
        broker.start()
        until(lambda: "restored_from_tier" in broker.log_file.read_text(), "the log starts from the tier")
        found = consume(broker.bootstrap_servers, "kept", end)
        assert [each.offset() for each in found] == list(range(end))
