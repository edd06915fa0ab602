"""Writing one record by hand: what was typed becomes bytes, a partition is chosen as producers do, and it is sent.

The dialog in which one record is written by hand.
"""

import base64
import binascii
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
from nicegui import ui

from millstream.columnar import partition_by_key
from millstream.console.frame import Frame
from millstream.console.widgets import Complaint, Typed, dialog, send_form
from millstream.formats.records.record import Header, Record, build_batch
from millstream.raw_client import Cluster, TopicPartition, WireError
from millstream.raw_client.producing import Producer
from millstream.raw_client.transactions import idempotent_producer

TEXT, JSON, BASE64, NULL = "text", "JSON", "base64", "null"
FORMS = (TEXT, JSON, BASE64, NULL)
"""How a key or a value is typed."""
_DELIVERY_S = 30.0


class TypedWrongError(ValueError):
    """What was typed is not of the form that was chosen; the text says how to put it right."""


@dataclass(frozen=True, slots=True)
class WrittenAt:
    partition: int
    offset: int


def typed_bytes(text: str, form: str, what: str) -> bytes | None:
    """The bytes of a key or value as it was typed; `what` names it in the error."""
    if form == NULL:
        return None
    if form == BASE64:
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise TypedWrongError(f"The {what} is no base64 ({error}): correct it, or choose another form.") from None
    if form == JSON:
        try:
            orjson.loads(text)
        except ValueError as error:
            raise TypedWrongError(f"The {what} is no JSON ({error}): correct it, or choose the form text.") from None
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise TypedWrongError(f"The {what} holds half a character: type it anew, or use base64.") from None


def typed_headers(text: str) -> tuple[Header, ...]:
    """One header a line, `name: value`; a line without a colon is a header without a value."""
    headers: list[Header] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not name.strip():
            raise TypedWrongError(f"Line {number} of the headers has no name: write one header a line, name: value.")
        headers.append((name.strip(), value.strip().encode() if colon else None))
    return tuple(headers)


class RecordWriter:
    """Blocking and thread safe: for worker threads, never for the event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def write(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
    ) -> WrittenAt:
        """Returns when all in-sync replicas have it. Without a partition, the key decides as Java's producer does."""
        count = self._cluster.partitions_of(topic)
        if partition is None:
            partition = random.randrange(count) if key is None else int(partition_by_key(pa.array([key]), count)[0])
        elif not 0 <= partition < count:
            raise TypedWrongError(f"{topic} has the partitions 0 to {count - 1}, not {partition}.")
        # With an id of its own the record is written once, even if an answer is lost and it is sent again.
        producer_id, epoch = idempotent_producer(self._cluster)
        record = Record(key, value, tuple(headers), time.time_ns() // 1_000_000)
        batch = build_batch([record], producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
        place = TopicPartition(topic, partition)
        producer = Producer(self._cluster, delivery_timeout_s=min(_DELIVERY_S, self._cluster.timeout_s))
        try:
            producer.send(place, batch, 1)
            producer.flush()
            written = producer.written.get(place)
        finally:
            producer.close()
        return WrittenAt(partition, written.first_offset if written is not None else -1)


def open_writing(frame: Frame, topic: str, partitions: int, written: Callable[[], Any]) -> None:
    """`written` is called after a record was written; the dialog stays, for the next one."""
    _Writing(frame, topic, partitions, written)


class _Writing:
    def __init__(self, frame: Frame, topic: str, partitions: int, written: Callable[[], Any]) -> None:
        self._frame = frame
        self._topic = topic
        self._written = written
        with dialog(f"Write a record to {topic}", wide=True, test_id="write-record") as self._dialog:
            with ui.element("div").classes("ms-form"):
                self._partition = (
                    ui.select(
                        {None: "by key", **{index: str(index) for index in range(partitions)}},
                        value=None,
                        label="Partition",
                    )
                    .props("outlined dense options-dense")
                    .classes("ms-field")
                )
                self._key_form = (
                    ui.select(list(FORMS), value=TEXT, label="Key is")
                    .props("outlined dense options-dense data-testid=key-form")
                    .classes("ms-field")
                )
                self._key = ui.input("Key").props("outlined dense data-testid=write-key").classes("ms-field-wide")
            with ui.element("div").classes("ms-form"):
                self._value_form = (
                    ui.select(list(FORMS), value=JSON, label="Value is")
                    .props("outlined dense options-dense data-testid=value-form")
                    .classes("ms-field")
                )
                ui.label(f"{NULL} is a tombstone: a compacted topic forgets the key.").classes("ms-help")
            self._value = (
                ui.textarea("Value", value="{}").props("outlined data-testid=write-value").classes("ms-stack ms-editor")
            )
            self._headers = (
                ui.textarea("Headers").props("outlined autogrow data-testid=write-headers").classes("ms-stack")
            )
            ui.label("One a line, name: value").classes("ms-help")
            self._complaint = Complaint()
            with ui.element("div").classes("ms-actions"):
                ui.button("Close", on_click=self._dialog.close).props("flat no-caps")
                self._button = ui.button("Write", icon="send").props("unelevated no-caps data-testid=write")
                send_form(self._button, self._write)
        self._dialog.open()

    async def _write(self, typed: Typed) -> None:
        try:
            key_form = str(self._key_form.value)
            # An empty line under "text" is how most people say that there is no key.
            key_text = typed.text(self._key)
            key = None if key_form == TEXT and not key_text else typed_bytes(key_text, key_form, "key")
            value = typed_bytes(typed.text(self._value), str(self._value_form.value), "value")
            headers = typed_headers(typed.text(self._headers))
            self._button.props("loading")
            writer = RecordWriter(self._frame.console.cluster)
            at = await self._frame.run(writer.write, self._topic, key, value, headers, self._partition.value)
        except (TypedWrongError, WireError) as error:
            self._complaint.say(str(error))
            return
        finally:
            self._button.props(remove="loading")
        self._complaint.say("")
        self._frame.say(f"Written to partition {at.partition} at offset {at.offset:,}.")
        self._frame.changed()
        await self._written()
