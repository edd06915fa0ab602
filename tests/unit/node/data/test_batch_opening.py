"""Requests whose batches are opened: they wait, nothing overtakes them, and nothing is refused for good too early."""

import asyncio
from collections.abc import Callable, Set
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, InvalidRecordsError, KafkaError
from millstream.formats.model.identifiers import TopicId, TopicName
from millstream.formats.protocol.produce import PartitionData, PartitionResult, ProduceRequest
from millstream.formats.records.batch import read_header
from millstream.formats.records.compression import Codec
from millstream.formats.records.opening import SMALL_BYTES, SMALL_RECORDS, OpeningLimits
from millstream.formats.records.record import Record, build_batch
from millstream.node.data.batch_opening import BatchOpening, OpenedBatches, open_batch, required_checks
from millstream.node.data.schema_validation import SchemaGuard, UnknownSchemaError
from millstream.node.environment import Environment
from millstream.node.metadata.image import ConfigResource, MetadataDelta, MetadataImage, ResourceType, TopicImage
from millstream.node.transactions.produce import ProduceCall

pytestmark = pytest.mark.plain  # partitions and their table are simple fakes

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


def request(*parts: tuple[bytes, int, bytes | bytearray]) -> tuple[ProduceRequest, bytearray]:
    """Topic, partition, and a batch or the value of the one record in it."""
    buffer = bytearray()
    topics = []
    for topic, index, data in parts:
        batch = data if isinstance(data, bytearray) else build_batch([Record(None, data)])
        topics.append((topic, [PartitionData(index, len(buffer), len(buffer) + len(batch))]))
        buffer += batch
    return ProduceRequest(None, -1, 1000, topics), buffer


class FakePartition:
    def __init__(self, config: LogConfig) -> None:
        self.is_leader, self.is_internal, self.is_mirror = True, False, False
        self.refusal: KafkaError | None = None
        self.log: Any = SimpleNamespace(config=config, opens_batches=required_checks(config, None) is not None)
        self.log.validate = self._judge

    def _judge(self, batch: memoryview, now_ms: int) -> None:
        if self.refusal is not None:
            raise self.refusal

    def check_enough_in_sync(self) -> None:
        """They are."""


class Stage:
    def __init__(self, image: MetadataImage, limits: OpeningLimits = OpeningLimits(), **config: Any) -> None:
        self.schemas = FakeSchemas()
        self.guard = SchemaGuard(image, self.schemas)
        self.jobs: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        """What was given to threads, and waits for `work`."""
        loop = asyncio.get_running_loop()
        clock, nothing = SimpleNamespace(now_ms=lambda: 1_000), cast(Any, None)
        environment = Environment(clock, loop, self._offload, Random(1), nothing)
        topics = {
            b"t": LogConfig(),
            b"free": LogConfig(),
            b"compacted": LogConfig(cleanup_policy=frozenset({"compact"})),
        }
        topics[b"own"] = LogConfig(compression_type="gzip")
        self.partitions = {
            topic: {index: FakePartition(config) for index in range(3)} for topic, config in topics.items()
        }
        table: Any = SimpleNamespace(by_name=self.partitions, by_id={})
        self.produce = BatchOpening(table, self.guard, self.schemas, environment, lambda: limits)
        self.taken: list[str] = []
        self.opened: dict[str, OpenedBatches] = {}
        self.responses: dict[str, list[tuple[int, str | None]]] = {}

    def _offload(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.jobs.append((function, future))
        return future

    async def work(self) -> int:
        """Does what threads were given until nothing is left; how many jobs that were."""
        done = 0
        await settled()
        while self.jobs:
            function, future = self.jobs.pop(0)
            try:
                future.set_result(function())
            except KafkaError as error:
                future.set_exception(error)
            done += 1
            await settled()
        return done

    def send(self, name: str, *parts: tuple[bytes, int, bytes | bytearray]) -> Any:
        asked, buffer = request(*parts)

        def append(call: ProduceCall) -> Any:
            faults = [each.fault for each in call.opened.values()]
            self.opened[name] = dict(call.opened)
            if not any(faults):
                self.taken.append(name)
            rows = [PartitionResult(0, fault.code if fault else 0) for fault in faults or [None]]
            return [(b"t", rows)], None

        def refuse(call: ProduceCall, error: KafkaError) -> Any:
            return [(b"t", [PartitionResult(0, error.code, message=error.message)])]

        results, wait = self.produce.append_when_opened(ProduceCall(asked, 9, buffer), append, refuse)
        note: Callable[[Any], None] = lambda final: self.responses.__setitem__(  # noqa: E731
            name, [(row.error, row.message) for _, rows in final for row in rows]
        )
        if wait is None:
            note(results)
        else:
            wait(note)
        return wait


def large(*keys: bytes | None, codec: Codec = Codec.GZIP) -> bytearray:
    """A batch that is small on the wire and not so small when it is opened."""
    return build_batch([Record(key, bytes(100_000)) for key in keys], codec=codec)


def test_a_large_batch_is_opened_in_a_thread_and_nothing_overtakes_it() -> None:
    async def scene() -> None:
        stage = Stage(image_of())
        turn = stage.send("first", (b"compacted", 0, large(b"k")))
        stage.send("behind", (b"compacted", 0, build_batch([Record(b"k", b"v")])))
        stage.send("beside", (b"compacted", 1, build_batch([Record(b"k", b"v")])))
        stage.send("free", (b"free", 0, b"anything"))
        assert stage.taken == ["beside", "free"]
        assert not turn.read_pause.is_over, "the connection waits"
        assert await stage.work() == 1, "the small one needs no thread"
        assert stage.taken == ["beside", "free", "first", "behind"]
        assert turn.read_pause.is_over
        assert stage.produce.held_bytes == 0

    asyncio.run(scene())


@pytest.mark.parametrize("topic", [b"compacted", b"own"])
@pytest.mark.parametrize("what", ["bytes", "records"])
def test_many_small_batches_of_one_request_are_not_all_opened_at_once(topic: bytes, what: str) -> None:
    """Each of them is little, and together they would keep the event loop from all other clients."""

    async def scene() -> None:
        stage = Stage(image_of())
        size, count = (12_000, 1) if what == "bytes" else (0, SMALL_RECORDS // 2)
        batch = build_batch([Record(b"k", bytes(size))] * count, codec=Codec.LZ4)
        few, many = [(topic, 0, batch)], [(topic, 0, batch)] * 12
        assert len(batch) * len(many) < SMALL_BYTES
        stage.send("few", *few)
        stage.send("many", *many)
        assert stage.taken == ["few"]
        assert await stage.work() == len(many)
        assert stage.taken == ["few", "many"]

    asyncio.run(scene())


def test_what_is_not_compressed_is_recompressed_at_once_only_if_it_is_small() -> None:
    async def scene() -> None:
        stage = Stage(image_of())
        stage.send("small", (b"own", 0, build_batch([Record(b"k", bytes(12_000))])))
        stage.send("large", (b"own", 1, build_batch([Record(b"k", bytes(50_000))])))
        assert stage.taken == ["small"]
        assert await stage.work() == 1
        assert stage.taken == ["small", "large"]

    asyncio.run(scene())


def test_lines_take_turns_and_few_are_opened_at_once() -> None:
    async def scene() -> None:
        stage = Stage(image_of())
        for number in range(3):
            stage.send(f"0.{number}", (b"compacted", 0, large(b"k")))
        stage.send("1.0", (b"compacted", 1, large(b"k")))
        stage.send("2.0", (b"compacted", 2, large(b"k")))
        await settled()
        assert len(stage.jobs) == 2
        assert await stage.work() == 5
        assert stage.taken == ["0.0", "1.0", "2.0", "0.1", "0.2"]

    asyncio.run(scene())


def test_what_headers_refuse_is_never_opened() -> None:
    async def scene() -> None:
        stage = Stage(image_of())
        stage.partitions[b"compacted"][0].refusal = KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "no")
        stage.send("gap", (b"compacted", 0, large(b"k")))
        assert await stage.work() == 0
        assert stage.responses["gap"] == [(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None)]

    asyncio.run(scene())


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_batches_above_the_limits_are_refused(codec: Codec) -> None:
    async def scene() -> None:
        stage = Stage(image_of(), OpeningLimits(max_bytes=250_000, max_records=3))
        for name, keys in (("fits", (b"a", b"b")), ("too many bytes", (b"a", b"b", b"c")), ("too many", (b"a",) * 4)):
            stage.send(name, (b"compacted", 0, large(*keys, codec=codec)))
        await stage.work()
        assert stage.taken == ["fits"]
        assert stage.responses["too many bytes"] == stage.responses["too many"] == [(ErrorCode.MESSAGE_TOO_LARGE, None)]

    asyncio.run(scene())


def test_a_topic_with_its_own_codec_gets_the_batch_in_it() -> None:
    async def scene() -> None:
        stage = Stage(image_of())
        stage.send("large", (b"own", 0, large(None, codec=Codec.LZ4)))
        stage.send("right", (b"own", 1, large(None, codec=Codec.GZIP)))
        stage.send("small", (b"own", 2, b"value"))
        await stage.work()
        for name in ("large", "small"):
            converted = stage.opened[name][0].converted
            assert converted is not None and read_header(converted).codec == Codec.GZIP
        assert stage.opened["right"][0].converted is None
        assert sorted(stage.taken) == ["large", "right", "small"]

    asyncio.run(scene())


def test_settings_that_change_while_a_batch_is_opened() -> None:
    async def scene() -> None:
        stage = Stage(image_of())
        stage.send("large", (b"own", 0, large(None, codec=Codec.LZ4)))
        await settled()
        stage.partitions[b"own"][0].log.config = LogConfig(cleanup_policy=frozenset({"compact"}))
        assert await stage.work() == 2
        assert stage.responses["large"] == [(ErrorCode.INVALID_RECORD, None)], "it has no key"

    asyncio.run(scene())


def test_each_record_without_a_key_is_named() -> None:
    async def scene() -> None:
        stage = Stage(image_of())
        stage.send("some", (b"compacted", 0, large(b"a", None, b"b", None)))
        await stage.work()
        fault = stage.opened["some"][0].fault
        assert isinstance(fault, InvalidRecordsError)
        assert [number for number, _ in fault.records] == [1, 3]

    asyncio.run(scene())


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
        assert stage.responses == {}
        await settled()
        assert stage.responses["unknown"] == [(ErrorCode.INVALID_RECORD, None)]
        stage.send("no id", (b"t", 0, b"plain"))
        assert stage.responses["no id"] == [(ErrorCode.INVALID_RECORD, None)], "for that nothing needs to be read"
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
        assert stage.responses["new"] == [(ErrorCode.NOT_ENOUGH_REPLICAS, "not now")]
        assert stage.taken == ["behind"]

    asyncio.run(scene())


def test_requests_above_the_bound_or_at_the_stop_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(image_of(value="true"))
        stage.send("held", (b"t", 0, value(NEW)))
        monkeypatch.setattr("millstream.node.data.batch_opening.MAX_HELD_BYTES", 10)
        stage.send("too much", (b"t", 0, value(NEW)))
        assert stage.responses["too much"][0][0] == ErrorCode.NOT_ENOUGH_REPLICAS
        await asyncio.sleep(0)
        stage.produce.close()
        await settled()
        assert stage.responses["held"] == [(ErrorCode.NOT_ENOUGH_REPLICAS, "the broker is stopping")]
        assert stage.taken == []

    asyncio.run(scene())


def fault_of(guard: SchemaGuard, topic: bytes, batch: bytearray) -> KafkaError | None:
    wanted = required_checks(LogConfig(), guard.wanted(topic))
    return None if wanted is None else open_batch(batch, wanted, OpeningLimits()).fault


@pytest.mark.parametrize("topic", [b"t", ID.bytes], ids=["by name", "by id"])
def test_each_record_is_named(topic: bytes) -> None:
    schemas: Any = SimpleNamespace(ids=lambda subject: {KNOWN} if subject == "t-value" else set())
    guard = SchemaGuard(image_of(value="true"), schemas)
    records = [Record(None, data) for data in (value(KNOWN), b"plain", None, value(77), b"\x00\x01")]
    batch = build_batch(records, codec=Codec.GZIP)
    fault = fault_of(guard, topic, batch)
    assert isinstance(fault, InvalidRecordsError) and not isinstance(fault, UnknownSchemaError)
    assert "has no schema id" in fault.message
    assert [place for place, _ in fault.records] == [1, 3, 4]
    assert "schema id 77 is not registered under subject t-value" in fault.records[1][1]
    assert isinstance(fault_of(guard, topic, build_batch(records[2:4])), UnknownSchemaError)
    assert fault_of(guard, topic, build_batch(records[:1])) is None
    assert fault_of(guard, b"other", batch) is None


def test_topics_come_and_go() -> None:
    schemas: Any = SimpleNamespace(ids=lambda subject: set())
    bad = build_batch([Record(b"key", b"plain")])
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
            assert isinstance(fault_of(guard, b"t", bad), InvalidRecordsError)
    topic = image_of(value="true").topics[TopicName("t")]
    guard.follow(MetadataDelta(created={topic.name: topic}), image_of(value="true"))
    assert guard
    guard.follow(MetadataDelta(deleted={topic.id: topic}), MetadataImage())
    assert not guard
