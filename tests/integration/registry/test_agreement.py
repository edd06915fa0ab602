"""Several registries on one topic, without a leader: the topic's order decides, and all see the same."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import pytest

from millstream.formats.records.record import Record, build_batch
from millstream.raw_client import Cluster, TopicPartition
from millstream.raw_client.producing import Producer
from millstream.raw_client.transactions import Transactions
from millstream.registry import log as schema_log
from millstream.registry.errors import RegistryError
from millstream.registry.records import Entry, Key, Kind, parse_subject
from millstream.registry.registering import SchemaRequest
from millstream.registry.registry import Registry

pytestmark = pytest.mark.timeout(300)
THREADS_EACH, ROUNDS = 3, 6


def schema(number: int) -> SchemaRequest:
    fields = [{"name": f"field{number}", "type": "int", "default": 0}]
    return SchemaRequest(json.dumps({"type": "record", "name": "R", "fields": fields}))


def test_racing_registries_never_give_a_schema_two_ids_nor_an_id_two_schemas(
    start_registry: Callable[[], Registry],
) -> None:
    registries = [start_registry(), start_registry()]
    responses: dict[tuple[str, int], set[tuple[int, int]]] = defaultdict(set)
    failures: list[BaseException] = []
    together = threading.Barrier(len(registries) * THREADS_EACH)

    def work(registry: Registry, subject: str) -> None:
        try:
            for number in range(ROUNDS):
                together.wait(60)
                stored = registry.register(parse_subject(subject), schema(number))
                responses[subject, number].add((stored.id, stored.version))
        except BaseException as error:
            failures.append(error)
            together.abort()

    # Everyone registers the same schemas at the same time, under subjects that overlap between the registries.
    threads = [
        threading.Thread(target=work, args=(registry, f"subject-{number % 2}"))
        for registry in registries
        for number in range(THREADS_EACH)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures

    assert all(len(given) == 1 for given in responses.values()), "all who registered a schema got the same response"
    ids = {
        number: {next(iter(responses[f"subject-{which}", number]))[0] for which in (0, 1)} for number in range(ROUNDS)
    }
    assert all(len(given) == 1 for given in ids.values()), "a schema has one id, whatever its subject"
    assert sorted(next(iter(given)) for given in ids.values()) == list(range(1, ROUNDS + 1)), "and no id is left out"
    newcomer = start_registry()
    for registry in (*registries, newcomer):
        assert registry.retry_if_missing(partial(registry.by_id, ROUNDS)).id == ROUNDS
        for which in (0, 1):
            versions = registry.versions(parse_subject(f"subject-{which}"))
            assert [row.version for row in versions] == list(range(1, ROUNDS + 1)), "no version twice, none left out"


def test_incompatible_schemas_that_race_are_decided_one_after_the_other(
    start_registry: Callable[[], Registry],
) -> None:
    """Each is compatible with what was there, but not with the other: only one may come in."""
    registries = [start_registry(), start_registry()]
    subject = parse_subject("s")
    base = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    registries[0].register(subject, SchemaRequest(json.dumps(base)))
    outcomes: list[object] = []
    together = threading.Barrier(2)

    def work(registry: Registry, kind: str, default: object) -> None:
        field = {"name": "b", "type": kind, "default": default}
        text = json.dumps(base | {"fields": [*base["fields"], field]})
        together.wait(30)
        try:
            outcomes.append(registry.register(subject, SchemaRequest(text)).version)
        except RegistryError as error:
            outcomes.append(error.code)

    threads = [
        threading.Thread(target=work, args=(registries[0], "int", 0)),
        threading.Thread(target=work, args=(registries[1], "boolean", False)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes, key=str) == [2, 409]


def test_what_one_registry_wrote_another_finds_at_once(start_registry: Callable[[], Registry]) -> None:
    one, two = start_registry(), start_registry()
    for number in range(3):
        stored = one.register(parse_subject("s"), schema(number))
        assert two.retry_if_missing(partial(two.by_id, stored.id)).text == stored.text


def test_a_registry_that_was_overtaken_decides_again(
    start_registry: Callable[[], Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one writes between this one's decision and its write: the write is refused, not taken."""
    one, two = start_registry(), start_registry()
    subject = parse_subject("s")
    one.register(subject, schema(0))
    decisions = []
    genuine = one._log._append

    def overtaken(entries: list[Entry]) -> int:
        if any(entry.key.kind is Kind.SCHEMA for entry in entries):
            decisions.append([entry.key.version for entry in entries])
            if len(decisions) == 1:
                two.register(subject, schema(1))
        return genuine(entries)

    monkeypatch.setattr(one._log, "_append", overtaken)
    stored = one.register(subject, schema(2))
    assert decisions == [[2], [3]]
    assert (stored.version, stored.id) == (3, 3)
    assert [row.id for row in two.retry_if_missing(lambda: two.versions(subject, deleted=True))][:2] == [1, 2]


def test_a_changed_producer_id_shuts_out_those_who_still_use_the_old_one(
    start_registry: Callable[[], Registry], cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when all epochs of the shared producer id have been used up."""
    one, two = start_registry(), start_registry()
    one.register(parse_subject("s"), schema(0))
    genuine = Transactions.take
    monkeypatch.setattr(Transactions, "take", lambda self, name, **rest: genuine(self, f"{name}-next", **rest))
    two.register(parse_subject("s"), schema(1))
    tenure = one._log._session
    assert tenure is not None
    with pytest.raises(schema_log._SessionLostError):
        one._log._append([Entry(Key(Kind.NOOP), None)])
    assert one.register(parse_subject("s"), schema(2)).version == 3


def test_records_of_a_writer_that_follows_no_rules_do_not_break_ids(
    registry: Registry, cluster: Cluster, topic: str
) -> None:
    """Such as another registry that is left running: an id that is taken stays with its schema."""
    subject = parse_subject("s")
    registry.register(subject, schema(0))
    key = b'{"keytype":"SCHEMA","subject":"other","version":1,"magic":1}'
    value = b'{"subject":"other","version":1,"id":1,"schema":"\\"string\\"","deleted":false}'
    rubbish = [Record(b"not json", b"x"), Record(b"[]", None), Record(b'{"keytype":"FUTURE","magic":9}', b"{}")]
    batch = build_batch([Record(key, value), *rubbish])
    producer = Producer(cluster)
    producer.send(TopicPartition(topic, 0), batch, 4)
    producer.flush()
    producer.close()
    stored = registry.register(subject, schema(1))
    assert stored.id == 2
    assert registry.by_id(1).subject == subject
    assert registry.subjects() == ["s"]
