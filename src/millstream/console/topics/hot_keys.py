"""Reads the latest hot-key reports of a topic and shows its hottest keys and busiest partitions."""

import json
import time
from typing import Any

from nicegui import ui

from millstream.access.masking import HIDDEN
from millstream.admin.hot_keys import REPORT_TOPIC, key_text, merged
from millstream.console.formats import ago, count, rate, short_count, size
from millstream.console.frame import Frame
from millstream.console.messages.reading import Range, ReadLimit, RecordReader
from millstream.console.tables import Column, DataTable
from millstream.console.widgets import card, grid

_RECENT_MS = 120_000


def newest_reports(reader: RecordReader, topic: str, *, now_ms: int | None = None) -> list[dict[str, Any]]:
    """The last report of each broker, without deleted ones: of the last minutes, else of all records."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    ranges = reader.ranges(REPORT_TOPIC)
    recent = reader.starts_at(REPORT_TOPIC, now_ms - _RECENT_MS, ranges)
    for starts in (recent, {index: span.start for index, span in ranges.items()}):
        spans = {index: Range(starts[index], span.end) for index, span in ranges.items()}
        page = reader.forwards(REPORT_TOPIC, spans, 1 << 62, limit=ReadLimit(seconds=3))
        found: dict[bytes, bytes | None] = {
            record.key: record.value
            for record in page.records
            if record.key is not None and record.key.rpartition(b"/")[0] == topic.encode()
        }
        if found:
            return [json.loads(value) for value in found.values() if value is not None]
    return []


_TOP = 20
EVERY_SECONDS = 5.0


class HotKeysView:
    def __init__(self, frame: Frame, topic: str) -> None:
        self._frame = frame
        self._topic = topic
        self._note = ui.label("").classes("ms-muted").props("data-testid=hot-note")
        with grid("two"):
            with card("Hottest keys", note="share of the sampled records"):
                self._keys = DataTable(
                    [
                        Column("key", "Key", cell="mono"),
                        Column("records", "Of records", _percent, cell="bar"),
                        Column("least", "At least", _percent, right=True),
                        Column("bytes", "Of bytes", _percent, right=True),
                    ],
                    key="key",
                    empty="No keys reported",
                    filtered=False,
                    sort_by="records",
                    descending=True,
                    test_id="hot-keys",
                )
            with card("Busiest partitions"):
                self._partitions = DataTable(
                    [
                        Column("partition", "Partition", width=96),
                        Column("share", "Of bytes", _percent, cell="bar"),
                        Column("records", "Records/s", rate, right=True),
                        Column("bytes", "Bytes/s", size, right=True),
                    ],
                    key="partition",
                    empty="No partitions reported",
                    filtered=False,
                    sort_by="share",
                    descending=True,
                    test_id="hot-partitions",
                )

    async def load(self) -> None:
        if REPORT_TOPIC not in self._frame.snapshot.topics:
            self._note.set_text(
                "No reports. Millstream brokers report hot keys while records arrive, unless "
                "millstream.hot.keys.enable is false. Other brokers do not report them."
            )
            return
        with self._frame.reporting("The hot-key reports cannot be read"):
            reports = await self._frame.run(newest_reports, RecordReader(self._frame.console.cluster), self._topic)
            if not reports:
                self._note.set_text("No report on this topic: no records were written recently.")
                return
            self._show(merged(reports, _TOP))

    def _show(self, document: dict[str, Any]) -> None:
        reported = ago(time.time() * 1000 - document["time_ms"])
        traffic = f"{short_count(document['records_per_second'])} records/s, {size(document['bytes_per_second'])}/s"
        self._note.set_text(
            f"Reported {reported}: {traffic}; {count(document['sampled_records'])} keys sampled. All records of a "
            "key are in one partition, so more partitions do not spread a hot key."
        )
        mask = self._frame.visitor.mask_of(self._topic)
        hides_keys = mask is not None and any(part == "key" for part, _ in mask.paths)
        self._keys.update(
            [
                {
                    "key": HIDDEN if hides_keys else key_text(key)[:200],
                    "records": key["record_share"],
                    "least": key["record_share_at_least"],
                    "bytes": key["byte_share"],
                    "_bars": {"records": round(100 * key["record_share"], 1)},
                }
                for key in document["keys"]
            ]
        )
        total = document["bytes_per_second"] or 1
        self._partitions.update(
            [
                {
                    "partition": part["partition"],
                    "share": part["bytes_per_second"] / total,
                    "records": part["records_per_second"],
                    "bytes": part["bytes_per_second"],
                    "_bars": {"share": round(100 * part["bytes_per_second"] / total, 1)},
                }
                for part in document["partitions"]
            ]
        )


def _percent(share: float) -> str:
    return f"{share:.1%}"
