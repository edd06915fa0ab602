"""A flipped bit in what a node knows of its cluster: it ends with one clear line, or starts rightly."""

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.config.loading import load_broker_config
from millstream.config.setting import ConfigError
from millstream.formats.records.batch import HEADER_SIZE, iterate_headers
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.node import Node
from millstream.node.runtime.real_environment import real_environment
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS

TOPICS = {f"topic-{number}" for number in range(3)}
METADATA = "__cluster_metadata-0"
LOG = f"{METADATA}/{0:020d}.log"


def make_directory(data_dir: Path, *, cleanly: bool) -> Path:
    """A node's directory with several epochs, a snapshot, and topics before and behind it."""
    settings = {"metadata.log.max.record.bytes.between.snapshots": 1500}
    with EmbeddedBroker(settings, data_dir=data_dir) as broker:
        for name in sorted(TOPICS):
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            admin.create_topics([NewTopic(name, 2, 1)])[name].result(TIMEOUT_SECONDS)
            broker.restart()
        if not cleanly:
            broker.kill()
    return data_dir


@pytest.fixture(scope="module", params=[True, False], ids=["stopped", "killed"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = make_directory(tmp_path_factory.mktemp("original") / "data", cleanly=request.param)
    assert list((directory / METADATA).glob("*.checkpoint"))
    yield directory


def start(data_dir: Path) -> str:
    """Starts a node, and returns why it does not; empty if it does, and knows everything it knew."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(asyncio.wait_for(_start(data_dir, loop), 60))
    finally:
        loop.close()


async def _start(data_dir: Path, loop: asyncio.AbstractEventLoop) -> str:
    config = load_broker_config(listen="127.0.0.1:0", data_dir=str(data_dir))
    node = Node(config, real_environment(loop), RealDisk())
    try:
        await node.start()
        assert node.loader is not None
        assert set(node.loader.image.topics) >= TOPICS
        return ""
    except ConfigError as error:
        return error.message
    finally:
        await node.stop()


def anywhere(path: Path, count: int) -> list[tuple[int, int]]:
    """Bytes and bits of a file, by chance, and always the same."""
    randomness, size = random.Random(path.name), path.stat().st_size
    return [(randomness.randrange(size), randomness.randrange(8)) for _ in range(count)]


def check(original: Path, scratch: Path, name: str, flips: list[tuple[int, int]]) -> list[str]:
    """Flips one bit of a file at a time, and starts a node; what the node said."""
    said = []
    for at, bit in flips:
        data_dir = scratch / "data"
        shutil.copytree(original, data_dir)
        data = bytearray((data_dir / name).read_bytes())
        data[at] ^= 1 << bit
        (data_dir / name).write_bytes(data)
        what = f"bit {bit} of byte {at} of {name}"
        try:
            reason = start(data_dir)
        except Exception as error:
            error.add_note(what)
            raise
        assert "\n" not in reason, what
        assert str(data_dir) in reason or not reason, f"{what}: {reason}"
        said.append(reason)
        shutil.rmtree(data_dir)
    return said


def test_a_node_starts_on_what_is_not_damaged(original: Path, tmp_path: Path) -> None:
    shutil.copytree(original, tmp_path / "data")
    assert start(tmp_path / "data") == ""


def test_a_flipped_bit_in_the_log(original: Path, tmp_path: Path) -> None:
    said = check(original, tmp_path, LOG, anywhere(original / LOG, 40))
    assert sum(map(bool, said)) > 20
    assert all(LOG in reason for reason in said if reason)


@pytest.mark.parametrize("bit", [0, 6, 7])
def test_a_flipped_bit_in_the_header_of_a_batch(original: Path, tmp_path: Path, bit: int) -> None:
    """Offset, length and epoch are not covered by the checksum."""
    positions = [position for position, _ in iterate_headers((original / LOG).read_bytes())]
    start = positions[len(positions) // 2]
    said = check(original, tmp_path, LOG, [(start + at, bit) for at in range(HEADER_SIZE)])
    assert all(LOG in reason for reason in said), said


def test_a_flipped_bit_in_a_snapshot(original: Path, tmp_path: Path) -> None:
    newest = max((original / METADATA).glob("*.checkpoint"))
    said = check(original, tmp_path, str(newest.relative_to(original)), anywhere(newest, 12))
    assert all(newest.name in reason for reason in said if reason)


@pytest.mark.parametrize(
    "name",
    [
        "meta.properties",
        ".kafka_cleanshutdown",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        f"{METADATA}/quorum-state",
        f"{METADATA}/leader-epoch-checkpoint",
        f"{METADATA}/partition.metadata",
        f"{METADATA}/{0:020d}.index",
        f"{METADATA}/{0:020d}.timeindex",
    ],
)
def test_a_flipped_bit_in_a_small_file(original: Path, tmp_path: Path, name: str) -> None:
    path = original / name
    if not path.exists() or not path.stat().st_size:
        pytest.skip(f"there is no {name}")
    check(original, tmp_path, name, anywhere(path, 8))
