"""Requests with unknown schema ids: they wait, nothing overtakes them, and nothing is refused for good too early."""

import asyncio
from collections.abc import Callable, Set
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from millstream.broker.handlers import guarded_produce
from millstream.broker.handlers.guarded_produce import GuardedProduce
from millstream.broker.schema_guard import InvalidRecordsError, SchemaGuard, UnknownSchemaError, Verdicts
from millstream.metadata.image import ConfigResource, MetadataDelta, MetadataImage, ResourceType, TopicImage
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import TopicId, TopicName
from millstream.protocol.produce import PartitionData, PartitionResult, ProduceRequest
from millstream.records.compression import Codec
from millstream.records.record import Record, build_batch

ID = UUID(int=5)
KNOWN, NEW = 1, 2


def image_of(**config: str) -> MetadataImage:
    name = TopicName("t")
    settings = {f"millstream.{part}.schema.validation": text for part, text in config.items()}
    return MetadataImage(
        topics={name: TopicImage(name=name, id=TopicId(ID), partitions=())},
        configs={ConfigResource(ResourceType.TOPIC, "t"): settings} if settings else {},
    )


class FakeSchemas:
    """Ids that become known when they are read."""

    def __init__(self) -> None:
        self.known: dict[str, set[int]] = {"t-value": {KNOWN}}
        self.registered: dict[str, set[int]] = {"t-value": {KNOWN, NEW}}
        self.may_go_on = asyncio.Event()
        self.trouble: KafkaError | None = None
        self.readings = 0

    def ids(self, subject: str) -> Set[int]:
        return self.known.get(subject, set())

    async def catch_up(self) -> None:
        self.readings += 1
        await self.may_go_on.wait()
        if self.trouble is not None:
            raise self.trouble
        self.known = self.registered

    def keep_fresh(self) -> None:
        """Nothing grows old here."""

    def close(self) -> None:
        """Nothing is open."""


async def settled() -> None:
    """Whatever can go on has done so."""
    for _ in range(20):
        await asyncio.sleep(0)


def value(schema_id: int) -> bytes:
    return b"\x00" + schema_id.to_bytes(4) + b"body"


def request(*parts: tuple[bytes, int, bytes]) -> tuple[ProduceRequest, bytearray]:
    """Topic, partition and value of one record each."""
    buffer = bytearray()
    topics = []
    for topic, index, data in parts:
        batch = build_batch([Record(None, data)])
        topics.append((topic, [PartitionData(index, len(buffer), len(buffer) + len(batch))]))
        buffer += batch
    return ProduceRequest(None, -1, 1000, topics), buffer


class Stage:
    def __init__(self, image: MetadataImage) -> None:
        self.schemas = FakeSchemas()
        self.guard = SchemaGuard(image, self.schemas)
        environment: Any = SimpleNamespace(loop=asyncio.get_running_loop())
        self.guarded = GuardedProduce(self.guard, self.schemas, environment)
        self.taken: list[str] = []
        self.answers: dict[str, list[tuple[int, str | None]]] = {}

    def send(self, name: str, *parts: tuple[bytes, int, bytes]) -> None:
        asked, buffer = request(*parts)

        def append(asked: ProduceRequest, buffer: bytearray, verdicts: Verdicts | None) -> Any:
            faults = list((verdicts or {}).values())
            if not any(faults):
                self.taken.append(name)
            rows = [PartitionResult(0, fault.code if fault else 0) for fault in faults or [None]]
            return [(b"t", rows)], None

        def refuse(asked: ProduceRequest, buffer: bytearray, error: KafkaError) -> Any:
            return [(b"t", [PartitionResult(0, error.code, message=error.message)])]

        results, wait = self.guarded.take(asked, buffer, append, refuse)
        note: Callable[[Any], None] = lambda final: self.answers.__setitem__(  # noqa: E731
            name, [(row.error, row.message) for _, rows in final for row in rows]
        )
        if wait is None:
            note(results)
        else:
            wait(note)


def test_nothing_overtakes_what_is_held() -> None:
    async def scene() -> None:
        stage = Stage(image_of(value="true"))
        stage.send("first", (b"t", 0, value(NEW)), (b"free", 0, b"anything"))
        stage.send("behind", (b"t", 0, value(KNOWN)))
        stage.send("behind, elsewhere", (b"free", 0, b"anything"))
        stage.send("beside", (b"t", 1, value(KNOWN)))
        stage.send("free", (b"free", 1, b"anything"))
        assert stage.taken == ["beside", "free"]
        await asyncio.sleep(0)
        stage.schemas.may_go_on.set()
        await settled()
        assert stage.taken == ["beside", "free", "first", "behind", "behind, elsewhere"]
        assert stage.schemas.readings == 1, "one reading for all that have gathered"
        stage.send("later", (b"t", 0, value(NEW)))
        assert stage.taken[-1] == "later", "nobody waits any more"

    asyncio.run(scene())


def test_what_is_still_unknown_is_refused_for_good() -> None:
    async def scene() -> None:
        stage = Stage(image_of(value="true"))
        stage.schemas.may_go_on.set()
        stage.send("unknown", (b"t", 0, value(77)))
        assert stage.answers == {}
        await settled()
        assert stage.answers["unknown"] == [(ErrorCode.INVALID_RECORD, None)]
        stage.send("no id", (b"t", 0, b"plain"))
        assert stage.answers["no id"] == [(ErrorCode.INVALID_RECORD, None)], "for that nothing needs to be read"
        assert not ErrorCode.INVALID_RECORD.retriable

    asyncio.run(scene())


def test_schemas_that_cannot_be_read_are_no_reason_for_good() -> None:
    async def scene() -> None:
        stage = Stage(image_of(value="true"))
        stage.schemas.trouble = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "not now")
        stage.schemas.may_go_on.set()
        stage.send("new", (b"t", 0, value(NEW)))
        stage.send("behind", (b"t", 0, value(KNOWN)))
        await settled()
        assert stage.answers["new"] == [(ErrorCode.NOT_ENOUGH_REPLICAS, "not now")]
        assert stage.taken == ["behind"]

    asyncio.run(scene())


def test_the_end_and_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(image_of(value="true"))
        stage.send("held", (b"t", 0, value(NEW)))
        monkeypatch.setattr(guarded_produce, "MOST_HELD_BYTES", 10)
        stage.send("too much", (b"t", 0, value(NEW)))
        assert stage.answers["too much"][0][0] == ErrorCode.NOT_ENOUGH_REPLICAS
        await asyncio.sleep(0)
        stage.guarded.close()
        await settled()
        assert stage.answers["held"] == [(ErrorCode.NOT_ENOUGH_REPLICAS, "the broker is stopping")]
        assert stage.taken == []

    asyncio.run(scene())


@pytest.mark.parametrize("topic", [b"t", ID.bytes], ids=["by name", "by id"])
def test_each_record_is_named(topic: bytes) -> None:
    schemas: Any = SimpleNamespace(ids=lambda subject: {KNOWN} if subject == "t-value" else set())
    guard = SchemaGuard(image_of(value="true"), schemas)
    records = [Record(None, data) for data in (value(KNOWN), b"plain", None, value(77), b"\x00\x01")]
    batch = memoryview(build_batch(records, codec=Codec.GZIP))
    with pytest.raises(InvalidRecordsError, match="carries no schema id") as caught:
        guard.check(topic, 0, batch, None)
    assert [place for place, _ in caught.value.records] == [1, 3, 4]
    assert "schema id 77 is not registered under subject t-value" in caught.value.records[1][1]
    with pytest.raises(UnknownSchemaError):
        guard.check(topic, 0, memoryview(build_batch(records[2:4])), None)
    guard.check(topic, 0, memoryview(build_batch(records[:1])), None)
    guard.check(b"other", 0, batch, None)


def test_topics_come_and_go() -> None:
    schemas: Any = SimpleNamespace(ids=lambda subject: set())
    bad = memoryview(build_batch([Record(b"key", b"plain")]))
    guard = SchemaGuard(image_of(), schemas)
    assert not guard
    resource = ConfigResource(ResourceType.TOPIC, "t")
    for image, guards in (
        (image_of(value="true"), True),
        (image_of(value="false"), False),
        (image_of(key="true"), True),
        (image_of(value="nonsense"), False),
        (image_of(value="true", key="true"), True),
        (MetadataImage(), False),
    ):
        guard.follow(MetadataDelta(configs=frozenset({resource})), image)
        assert bool(guard) is guards
        if guards:
            with pytest.raises(InvalidRecordsError):
                guard.check(b"t", 0, bad, None)
    topic = image_of(value="true").topics[TopicName("t")]
    guard.follow(MetadataDelta(created={topic.name: topic}), image_of(value="true"))
    assert guard
    guard.follow(MetadataDelta(deleted={topic.id: topic}), MetadataImage())
    assert not guard
