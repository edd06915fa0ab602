"""The fold over the records of `_schemas`: whatever happened before, compaction does not change what they amount to."""

import threading
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.registry.errors import RegistryError
from millstream.registry.log import noop
from millstream.registry.records import (
    Entry,
    Key,
    Kind,
    Reference,
    Subject,
    decode,
    encode_key,
    encode_value,
    parse_subject,
)
from millstream.registry.registering import SchemaRequest
from millstream.registry.registry import Registry
from millstream.registry.state import RegistryState

SUBJECTS = ("a", "b", ":.team:a")
SCHEMAS = (
    '"int"',
    '"string"',
    '{"type":"enum","name":"n.E","symbols":["A"]}',
    '{"type":"fixed","name":"n.E","size":2}',
)
CHANGES = st.one_of(
    st.tuples(st.just("register"), st.sampled_from(SUBJECTS), st.sampled_from(SCHEMAS)),
    st.tuples(st.just("register user"), st.sampled_from(SUBJECTS), st.sampled_from([1, 2, 3, -1])),
    st.tuples(st.just("delete version"), st.sampled_from(SUBJECTS), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("delete subject"), st.sampled_from(SUBJECTS), st.booleans()),
    st.tuples(st.just("config"), st.sampled_from(SUBJECTS), st.sampled_from(["NONE", "FULL"])),
    st.tuples(st.just("take tenure")),
)


class TopicInMemory:
    """What a registry needs of its log, with the records in a list; bytes, as in a topic."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.state = RegistryState()
        self.records: list[tuple[bytes, bytes | None]] = []
        self.not_ready_reason = None

    def catch_up(self) -> None:
        pass

    def write(self, decide: Callable[[RegistryState], list[Entry]]) -> None:
        for entry in decide(self.state):
            self.records.append((encode_key(entry.key), encode_value(entry.value)))
            assert apply(self.state, *self.records[-1]) is None

    def compacted(self) -> list[tuple[bytes, bytes | None]]:
        """The last of each key, in order; tombstones go as well, sooner or later."""
        last = {key: offset for offset, (key, _) in enumerate(self.records)}
        return [row for offset, row in enumerate(self.records) if last[row[0]] == offset and row[1] is not None]


def apply(state: RegistryState, key: bytes, value: bytes | None) -> str | None:
    entry = decode(key, value)
    assert entry is not None
    return state.apply(entry)


def seen(state: RegistryState) -> dict[str, Any]:
    """All that a registry can be asked."""
    subjects = sorted(state.subjects())
    return {
        "versions": {subject: state.versions(subject, deleted=True) for subject in subjects},
        "ids": {context: dict(sorted(state.contents(context))) for context in state.contexts()},
        "next": {context: state.next_id(context) for context in state.contexts()},
        "configs": state.configs,
        "modes": state.modes,
    }


def change(registry: Registry, topic: TopicInMemory, what: tuple[Any, ...]) -> None:
    if what[0] == "take tenure":
        topic.write(lambda state: [noop(state)])
        return
    subject = parse_subject(what[1])
    if what[0] == "register":
        registry.register(subject, SchemaRequest(what[2]))
    elif what[0] == "register user":
        references = (Reference("n.E", "a", what[2]),)
        registry.register(subject, SchemaRequest('{"type":"array","items":"n.E"}', references=references))
    elif what[0] == "delete version":
        registry.deleter.delete_version(subject, what[2], permanent=what[3])
    elif what[0] == "delete subject":
        registry.deleter.delete_subject(subject, permanent=what[2])
    else:
        registry.settings.set_config(subject, {"compatibility": what[2]})


@given(st.lists(CHANGES, max_size=25))
def test_a_compacted_topic_gives_the_same_registry(changes: list[tuple[Any, ...]]) -> None:
    topic = TopicInMemory()
    registry = Registry(topic)  # type: ignore[arg-type]
    registry.settings.set_config(None, {"compatibility": "NONE"})
    given_ids: dict[tuple[str, int], str] = {}
    for what in changes:
        try:
            change(registry, topic, what)
        except RegistryError as error:
            assert error.status < 500
        for stored in topic.state.subjects():
            for row in topic.state.versions(stored, deleted=True):
                assert registry.parser.parse_error(row) is None, "what a schema refers to is there as long as it is"
        for context in topic.state.contexts():
            for schema_id, content in topic.state.contents(context):
                assert given_ids.setdefault((context, schema_id), content.text) == content.text, "an id is for good"
            contents = [content for _, content in topic.state.contents(context)]
            assert len(contents) == len(set(contents)), "a schema has one id"
    again = RegistryState()
    for key, value in topic.compacted():
        assert apply(again, key, value) is None
    assert seen(again) == seen(topic.state)


def test_an_imported_schema_with_two_ids_is_known_by_the_lower_one() -> None:
    state = RegistryState()
    for version, schema_id in ((1, 9), (2, 4)):
        value = {"subject": "s", "version": version, "id": schema_id, "schema": '"int"', "deleted": False}
        state.apply(Entry(Key(Kind.SCHEMA, Subject(".", "s"), version), value))
    content = state.content(".", 9)
    assert content is not None
    assert state.id_of(".", content) == 4
    state.apply(Entry(Key(Kind.SCHEMA, Subject(".", "s"), 2), None))
    assert state.id_of(".", content) == 9
    state.apply(Entry(Key(Kind.SCHEMA, Subject(".", "s"), 1), None))
    assert state.id_of(".", content) is None


def test_clearing_a_subject_removes_what_is_deleted() -> None:
    state = RegistryState()
    subject = Subject(".", "s")
    for version, deleted in ((1, True), (2, False)):
        value = {"subject": "s", "version": version, "id": version, "schema": f'"{version}"', "deleted": deleted}
        state.apply(Entry(Key(Kind.SCHEMA, subject, version), value))
    state.apply(Entry(Key(Kind.CLEAR_SUBJECT, subject), {"subject": "s"}))
    assert [row.version for row in state.versions(subject, deleted=True)] == [2]
