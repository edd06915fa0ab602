"""The Mirrors page: links to other clusters, their topics and lag; pause and resume them, promote, fail over and
reverse after a preview, compare with the source, create and delete links.

The status of a link is read every few seconds while the page is open, and less often if it takes long.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nicegui import ui

from millstream.admin.errors import NotFoundError
from millstream.admin.mirror_verification import Verified, verify_topic
from millstream.admin.mirrors import LinkStatus, MirrorAdmin, MirrorTopic, PartitionStatus
from millstream.admin.mirrors import Missing as Removed
from millstream.console.console import UserError, href
from millstream.console.formats import count, plural, size
from millstream.console.frame import Frame, console_page, go
from millstream.console.tables import Column, DataTable
from millstream.console.visitor import Action
from millstream.console.widgets import FieldErrors, FormValues, Missing, Stat, card, dialog, heading, send_form
from millstream.raw_client import Cluster, WireError

_EVERY_SECONDS = 3.0
_REST_FACTOR = 9
_CHECK_EVERY_SECONDS = 0.5
_SOURCE_TIMEOUT_SECONDS = 15.0
_STATE_TONES = {"mirroring": "good", "promoting": "info", "promoted": "dim", "failed": "bad"}


@console_page("/mirrors")
def mirrors(frame: Frame) -> None:
    name = frame.parameters.get("link", "")
    if name:
        LinkView(frame, name)
    else:
        _list(frame)


class _Repeated:
    """Reads again and again, at most a tenth of the time."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read
        self._due = 0.0
        self._is_reading = False
        ui.timer(_CHECK_EVERY_SECONDS, self._look)

    def soon(self) -> None:
        self._due = 0.0

    async def _look(self) -> None:
        began = time.monotonic()
        if self._is_reading or began < self._due:
            return
        self._is_reading = True
        try:
            await self._read()
        finally:
            self._is_reading = False
            took = time.monotonic() - began
            self._due = time.monotonic() + max(_EVERY_SECONDS, _REST_FACTOR * took)


@dataclass(slots=True)
class Lag:
    """Of a topic or a link: records and bytes added up, the longest time. None where no report is known."""

    records: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    problems: list[str] = field(default_factory=list)

    def add(self, row: PartitionStatus) -> None:
        if row.lag_records >= 0:
            self.records = (self.records or 0) + row.lag_records
        if row.lag_bytes >= 0:
            self.bytes = (self.bytes or 0) + row.lag_bytes
        if row.lag_seconds >= 0:
            self.seconds = max(self.seconds or 0.0, row.lag_seconds)
        if row.problem and row.problem not in self.problems:
            self.problems.append(row.problem)


def lag_of(partitions: Sequence[PartitionStatus]) -> Lag:
    """The lag of partitions that are still mirrored."""
    lag = Lag()
    for row in partitions:
        if row.state in ("mirroring", "promoting"):
            lag.add(row)
    return lag


def link_state(status: LinkStatus) -> tuple[str, str]:
    """The state of a link in a few words, and its colour."""
    if status.link.is_paused:
        return "paused", "warn"
    if status.problem or any(each.state == "failed" for each in status.topics):
        return "problem", "bad"
    if status.topics and all(each.state == "promoted" for each in status.topics):
        return "promoted", "dim"
    return "mirroring", "good"


def _seconds(value: float) -> str:
    return f"{value:,.1f} s"


_LAG_COLUMNS = (
    Column("records", "Lag, records", count, right=True, width=120),
    Column("bytes", "Lag, bytes", size, right=True),
    Column("seconds", "Lag, time", _seconds, right=True),
)


def _lag_cells(lag: Lag) -> dict[str, Any]:
    return {"records": lag.records, "bytes": lag.bytes, "seconds": lag.seconds, "problem": "; ".join(lag.problems)}


def _list(frame: Frame) -> None:
    with heading("Mirrors", "Topics of other clusters, copied here with the same offsets"):
        button = ui.button("Create link", icon="add", on_click=lambda: _open_creation(frame))
        frame.offer(Action.CREATE_MIRROR, button).props("unelevated no-caps data-testid=open-create-link")
    with card(""):
        table = DataTable(
            [
                Column("link", "Link", cell="link", searched=True),
                Column("state", "State", cell="badge"),
                Column("source", "Source", cell="nowrap", searched=True),
                Column("topics", "Topics", count, right=True),
                *_LAG_COLUMNS,
                Column("problem", "Problem", cell="wrap"),
            ],
            key="link",
            empty="No mirror links. Create one here, or with `millstream mirror create`.",
            test_id="links",
            name="",
        )

    async def look() -> None:
        with frame.reporting("The mirror links cannot be read"):
            table.update([_link_row(status) for status in await frame.run(read_links, admin)])

    admin = MirrorAdmin(frame.console.cluster)
    _Repeated(look)


def read_links(admin: MirrorAdmin) -> list[LinkStatus]:
    return [admin.status(link.name) for link in admin.links()]


def read_link(admin: MirrorAdmin, name: str) -> LinkStatus | None:
    """The status of a link; None if there is no such link."""
    try:
        return admin.status(name)
    except NotFoundError:
        return None


def _link_row(status: LinkStatus) -> dict[str, Any]:
    state, tone = link_state(status)
    cells = _lag_cells(lag_of(status.partitions))
    reasons = [status.problem, cells["problem"], *(f"{name}: {why}" for name, why in status.conflicts.items())]
    return {
        "link": status.link.name,
        "state": state,
        "_tones": {"state": tone},
        "source": status.link.source,
        "topics": len(status.topics),
        **cells,
        "problem": "; ".join(reason for reason in reasons if reason),
        "_href": href("/mirrors", link=status.link.name),
    }


def _open_creation(frame: Frame) -> None:
    with dialog("Create a mirror link", test_id="create-link") as box:
        with ui.element("div").classes("ms-stack"):
            name = ui.input("Name, such as west").props("outlined dense autofocus data-testid=link-name")
            source = ui.input("Brokers of the source, HOST:PORT").props("outlined dense data-testid=link-source")
            topics = ui.input("Topics, as a regular expression", value=".*").props(
                "outlined dense data-testid=link-topics"
            )
            prefix = ui.input("Prefix of the names here (optional)").props("outlined dense data-testid=link-prefix")
        ui.label(
            "Brokers of this cluster connect to the source. A source with a login needs client properties: "
            "use `millstream mirror create … --source-config FILE`."
        ).classes("ms-help")
        errors = FieldErrors()

        async def create(typed: FormValues) -> None:
            wanted = typed.text(name).strip()
            settings = {"bootstrap.servers": typed.text(source).strip(), "topics": typed.text(topics).strip()}
            if typed.text(prefix).strip():
                settings["prefix"] = typed.text(prefix).strip()
            try:
                admin = MirrorAdmin(frame.console.cluster)
                await frame.act(Action.CREATE_MIRROR, admin.create, wanted, settings)
            except (WireError, UserError) as error:
                errors.show(str(error))
                return
            box.close()
            go("/mirrors", link=wanted)

        with ui.element("div").classes("ms-actions"):
            ui.button("Cancel", on_click=box.close).props("flat no-caps")
            send_form(ui.button("Create").props("unelevated no-caps data-testid=create"), create)
    box.open()


def _button(text: str, icon: str, act: Callable[[], Any], test_id: str) -> ui.button:
    return ui.button(text, icon=icon, on_click=act).props(f"outline no-caps data-testid={test_id}")


class LinkView:
    """One link."""

    def __init__(self, frame: Frame, name: str) -> None:
        self._frame = frame
        self._name = name
        self._admin = MirrorAdmin(frame.console.cluster)
        self._status: LinkStatus | None = None
        with ui.link(target="/mirrors").classes("ms-back"):
            ui.icon("arrow_back")
            ui.label("Mirrors")
        with heading(name) as self._actions:
            self._pause = frame.offer(Action.PAUSE_MIRROR, _button("Pause", "pause", self._pause_or_resume, "pause"))
            self._buttons = [
                frame.offer(Action.PROMOTE_MIRROR, _button("Promote…", "upgrade", self._promote, "promote")),
                frame.offer(Action.PROMOTE_MIRROR, _button("Fail over…", "bolt", self._fail_over, "failover")),
            ]
            self._reverse = frame.offer(
                Action.REVERSE_MIRROR, _button("Reverse…", "swap_horiz", self._open_reversal, "reverse")
            )
            self._compare = _button("Compare", "fact_check", self._verify, "verify")
            self._delete = frame.offer(
                Action.DELETE_MIRROR, _button("Delete", "delete_outline", self._delete_link, "delete")
            ).props("color=negative")
        self._missing = Missing("link")
        with card(""), ui.element("div").classes("ms-stats"):
            self._stats = {
                "state": Stat("state", test_id="link-state"),
                "topics": Stat("topics", test_id="link-topic-count"),
                "records": Stat("records behind", test_id="link-records"),
                "bytes": Stat("bytes behind"),
                "seconds": Stat("behind", test_id="link-seconds"),
            }
        self._source = ui.label("").classes("ms-muted ms-mono")
        self._problem = ui.label("").classes("ms-complaint").props("role=status data-testid=link-problem")
        with card("Topics", note="select some to promote or fail over these alone"):
            self._topics = DataTable(
                [
                    Column("topic", "Topic", cell="link", searched=True),
                    Column("source", "At the source", cell="mono", searched=True),
                    Column("state", "State", cell="badge"),
                    Column("partitions", "Partitions", count, right=True),
                    *_LAG_COLUMNS,
                    Column("problem", "Problem", cell="wrap"),
                ],
                key="topic",
                empty="No topic of the source matches yet.",
                test_id="link-topics-table",
                name="",
                on_select=lambda _: None,
            )
        with card(
            "Compared with the source", note="checksums of all batches that both sides have"
        ) as self._verify_card:
            self._verify_status = ui.label("").classes("ms-muted").props("role=status data-testid=verify-status")
            self._verified = DataTable(
                [
                    Column("partition", "Partition", cell="mono", searched=True),
                    Column("result", "Result", cell="badge", width=240),
                    Column("start", "From", count, right=True),
                    Column("end", "To", count, right=True),
                    Column("batches", "Batches", count, right=True),
                ],
                key="partition",
                empty="Nothing was compared.",
                test_id="verified",
            )
        self._verify_card.set_visibility(False)
        self._repeated = _Repeated(self._look)

    async def _look(self) -> None:
        frame = self._frame
        with frame.reporting("The mirror link cannot be read"):
            self._status = await frame.run(read_link, self._admin, self._name)
            self._missing.show(self._status is None, self._actions)
            if self._status is not None:
                self._show(self._status)

    def _show(self, status: LinkStatus) -> None:
        state, tone = link_state(status)
        lag = lag_of(status.partitions)
        stats = self._stats
        stats["state"].show(state, "" if tone == "good" else tone)
        stats["topics"].show(count(len(status.topics)))
        stats["records"].show("–" if lag.records is None else count(lag.records))
        stats["bytes"].show("–" if lag.bytes is None else size(lag.bytes))
        stats["seconds"].show("–" if lag.seconds is None else _seconds(lag.seconds))
        self._pause.set_text("Resume" if status.link.is_paused else "Pause")
        self._pause.props(f"icon={'play_arrow' if status.link.is_paused else 'pause'}")
        self._source.set_text(f"Source: {status.link.source}   {status.source_cluster}")
        conflicts = [f"{name}: {why}" for name, why in status.conflicts.items()]
        self._problem.set_text("\n".join(text for text in (status.problem, *conflicts) if text))
        is_mirror = any(each.state != "promoted" for each in status.topics)
        for button in self._buttons:
            button.set_enabled(is_mirror)
        self._reverse.set_enabled(bool(status.topics) and not is_mirror)
        rows: dict[str, list[PartitionStatus]] = defaultdict(list)
        for row in status.partitions:
            rows[row.topic].append(row)
        self._topics.update([_topic_row(each, rows[each.name]) for each in status.topics])

    async def _pause_or_resume(self) -> None:
        with self._frame.reporting("The link was not changed"):
            is_paused = self._status is not None and self._status.link.is_paused
            change = self._admin.resume if is_paused else self._admin.pause
            await self._frame.act(Action.PAUSE_MIRROR, change, self._name)
            self._frame.notify(f"Link {self._name} was {'resumed' if is_paused else 'paused'}.")
        self._repeated.soon()

    def _chosen(self) -> list[str]:
        """The topics that are selected, or all that are still mirrors."""
        assert self._status is not None
        mirrors = [each.name for each in self._status.topics if each.state != "promoted"]
        return [name for name in mirrors if name in self._topics.selected] or mirrors

    async def _promote(self) -> None:
        if self._status is None:
            return
        names = self._chosen()
        agreed = await self._frame.confirm(
            f"Promote {plural(len(names), 'topic')} of {self._name}?",
            names,
            action="Promote",
            more="Each topic becomes a normal topic when it has everything that the source has. Stop the producers at "
            "the source first. Resume gives up promotions that wait.",
        )
        if agreed:
            with self._frame.reporting("The topics were not promoted"):
                await self._frame.act(Action.PROMOTE_MIRROR, self._admin.begin_promotion, self._name, names)
                self._topics.unselect()
            self._repeated.soon()

    async def _fail_over(self) -> None:
        """Asks with a preview of what is missing, then shows what was missing."""
        with self._frame.reporting("The topics were not failed over"):
            status = self._status = await self._frame.run(read_link, self._admin, self._name)
            if status is None:
                return
            names = self._chosen()
            agreed = await self._frame.confirm(
                f"Fail over {plural(len(names), 'topic')} of {self._name} now?",
                [_missing_line(each) for each in status.partitions if each.topic in names],
                action="Fail over",
                more="The topics become normal topics at once, also without the source. What the source has beyond "
                "these offsets stays there, and open transactions are aborted. This cannot be undone.",
            )
            if not agreed:
                return
            missing = await self._frame.act(Action.PROMOTE_MIRROR, self._admin.failover, self._name, names)
            self._topics.unselect()
            known = [row.records for row in missing if row.records > 0]
            unknown = sum(row.records < 0 for row in missing)
            lost = f"{plural(sum(known), 'record')} missing in {plural(len(known), 'partition')}"
            if unknown:
                lost += f"; not known for {plural(unknown, 'partition')}"
            self._frame.notify(f"{plural(len(names), 'topic')} failed over: {lost}.")
        self._repeated.soon()

    def _open_reversal(self) -> None:
        if self._status is not None:
            _Reversal(self._frame, self._admin, self._status)

    async def _verify(self) -> None:
        """Compares topic by topic and shows each partition as soon as it was compared."""
        if self._status is None:
            return
        wanted = [each for each in self._status.topics if each.state != "failed"]
        chosen = [each for each in wanted if each.name in self._topics.selected] or wanted
        self._verify_card.set_visibility(True)
        self._compare.props("loading")
        rows: list[dict[str, Any]] = []
        self._verified.update(rows)
        try:
            with self._frame.reporting("The topics were not compared"):
                with source_of(self._status) as source:
                    results = _verified(self._admin, source, chosen)
                    while self._frame.is_open and (found := await self._frame.run(read_next, results)):
                        rows = [*rows, _verified_row(found)]
                        self._verified.update(rows)
                        self._verify_status.set_text(f"{plural(len(rows), 'partition')} compared …")
                different = sum(row["_is_different"] for row in rows)
                self._verify_status.set_text(
                    f"{plural(different, 'partition')} of {len(rows)} differ."
                    if different
                    else f"{plural(len(rows), 'partition')} compared: equal."
                )
        finally:
            self._compare.props(remove="loading")

    async def _delete_link(self) -> None:
        agreed = await self._frame.confirm(
            f"Delete link {self._name}?",
            [f"link {self._name} and its settings"],
            action="Delete link",
            more="Its topics must be promoted or deleted before. They stay, with their records.",
        )
        if agreed:
            with self._frame.reporting("The link was not deleted"):
                await self._frame.act(Action.DELETE_MIRROR, self._admin.delete, self._name)
                go("/mirrors")


def preview_reversal(admin: MirrorAdmin, name: str, source: MirrorAdmin) -> list[Removed]:
    """What the old source would remove."""
    return admin.reverse(name, source, {}, dry_run=True)


def reverse_link(name: str, admin: MirrorAdmin, source: MirrorAdmin, back: str) -> list[Removed]:
    return admin.reverse(name, source, {"bootstrap.servers": back})


class _Reversal:
    """The dialog that makes the old source a mirror of this cluster. The preview shows what the old source removes."""

    def __init__(self, frame: Frame, admin: MirrorAdmin, status: LinkStatus) -> None:
        self._frame = frame
        self._admin = admin
        self._status = status
        with dialog(f"Reverse {status.link.name}", wide=True, test_id="reversal") as self._dialog:
            ui.label(
                f"The old source, {status.link.source}, becomes a mirror of this cluster. It removes the records that "
                "this cluster does not have, and then follows. The link moves to the old source, under the same name."
            ).classes("ms-help")
            with ui.element("div").classes("ms-form"):
                self._back = (
                    ui.input("This cluster, as the old source reaches it", value=frame.console.cluster.bootstrap)
                    .props("outlined dense data-testid=to-here")
                    .classes("ms-field-wide")
                )
                self._ask = ui.button("Preview", on_click=self._preview).props(
                    "outline no-caps data-testid=reverse-preview"
                )
            self._table = DataTable(
                [
                    Column("partition", "Partition", cell="mono"),
                    Column("end", "Common end", count, right=True),
                    Column("source_end", "End there", count, right=True),
                    Column("records", "Removed there", count, right=True, width=140),
                ],
                key="partition",
                empty="Choose Preview. Nothing changes before you confirm.",
                filtered=False,
                page_size=25,
                test_id="removed",
            )
            self._errors = FieldErrors()
            with ui.element("div").classes("ms-actions"):
                ui.button("Cancel", on_click=self._dialog.close).props("flat no-caps")
                self._do = ui.button("Reverse").props("unelevated color=negative no-caps data-testid=reverse-execute")
                send_form(self._do, self._execute)
                self._do.disable()
        self._dialog.open()

    async def _preview(self) -> None:
        self._errors.show("")
        self._ask.props("loading")
        try:
            with source_of(self._status) as source:
                removed = await self._frame.run(
                    preview_reversal, self._admin, self._status.link.name, MirrorAdmin(source)
                )
        except (WireError, UserError) as error:
            self._errors.show(str(error))
            return
        finally:
            self._ask.props(remove="loading")
        self._table.update(
            [
                {
                    "partition": f"{each.topic}-{each.partition}",
                    "end": each.end,
                    "source_end": each.source_end,
                    "records": each.records,
                }
                for each in removed
            ]
        )
        total = sum(max(0, each.records) for each in removed)
        self._do.set_text(f"Reverse, and remove {plural(total, 'record')} there")
        self._do.enable()

    async def _execute(self, typed: FormValues) -> None:
        name, back = self._status.link.name, typed.text(self._back).strip()
        self._do.props("loading")
        try:
            if not back:
                raise UserError("enter the brokers of this cluster as HOST:PORT, as the old source reaches them")
            with source_of(self._status) as source:
                await self._frame.act(Action.REVERSE_MIRROR, reverse_link, name, self._admin, MirrorAdmin(source), back)
        except (WireError, UserError) as error:
            self._errors.show(str(error))
            return
        finally:
            self._do.props(remove="loading")
        self._frame.notify(f"Link {name} was reversed: it is at the old source now.")
        self._dialog.close()
        go("/mirrors")


def source_of(status: LinkStatus) -> Cluster:
    """A client of the source. UserError if it needs a login: the cluster does not show the secrets of a link."""
    protocol = status.link.setting("security.protocol", "PLAINTEXT")
    if protocol != "PLAINTEXT":
        raise UserError(
            f"the source needs {protocol}, and the secrets of a link are not shown. Use `millstream mirror verify "
            f"{status.link.name} --source-config FILE`."
        )
    return Cluster(status.link.source, client_id="millstream-console", timeout_s=_SOURCE_TIMEOUT_SECONDS)


def _verified(admin: MirrorAdmin, source: Cluster, topics: Sequence[MirrorTopic]) -> Iterator[Verified]:
    for each in topics:
        yield from verify_topic(admin.cluster, source, each, is_compacted=admin.is_compacted(each.name))


def read_next(results: Iterator[Verified]) -> Verified | None:
    return next(results, None)


def _verified_row(found: Verified) -> dict[str, Any]:
    return {
        "partition": f"{found.topic}-{found.partition}",
        "result": found.difference or "equal",
        "_tones": {"result": "bad" if found.difference else "good"},
        "_is_different": bool(found.difference),
        "start": found.start,
        "end": found.end,
        "batches": found.batches,
    }


def _topic_row(topic: MirrorTopic, partitions: Sequence[PartitionStatus]) -> dict[str, Any]:
    cells = _lag_cells(lag_of(partitions))
    reasons = [topic.reason, cells["problem"]]
    return {
        "topic": topic.name,
        "source": topic.source_name or topic.name,
        "state": topic.state,
        "_tones": {"state": _STATE_TONES.get(topic.state, "warn")},
        "partitions": len(partitions),
        **cells,
        "problem": "; ".join(reason for reason in reasons if reason),
        "_href": href("/topics", topic=topic.name),
    }


def _missing_line(row: PartitionStatus) -> str:
    where = f"{row.topic}-{row.partition}"
    if row.source_end < 0 or row.end < 0:
        return f"{where}: what is missing is not known"
    missing = max(0, row.source_end - row.end)
    return f"{where}: {plural(missing, 'record')} missing, as last reported (end {row.end:,} of {row.source_end:,})"
