"""The Cluster page: leaders, replicas, disks, reassignments and the quorum; elects preferred leaders."""

from collections import Counter
from collections.abc import Mapping

from nicegui import ui

from millstream.admin.cluster import ClusterAdmin
from millstream.console.formats import ago, count, plural, size
from millstream.console.frame import Frame, console_page, go
from millstream.console.live.snapshot import Snapshot, not_preferred
from millstream.console.overview import broker_rows, quorum_rows
from millstream.console.reassignments import REASSIGNMENT_COLUMNS, reassignment_rows
from millstream.console.tables import Column, DataTable
from millstream.console.visitor import Action
from millstream.console.widgets import BarChart, Stat, card, grid, heading
from millstream.raw_client.model import NO_LEADER


@console_page("/cluster")
def cluster(frame: Frame) -> None:
    async def elect() -> None:
        partitions = [each.topic_partition for each in not_preferred(frame.snapshot)]
        with frame.reporting("The leaders were not elected"):
            refused = await frame.act(
                Action.ELECT_LEADERS, ClusterAdmin(frame.console.cluster).elect_preferred, partitions
            )
            frame.poll_now()
            if refused:
                partition, why = next(iter(refused.items()))
                frame.show_error(
                    f"The leader of {plural(len(refused), 'partition')} was not changed, for example {partition}: {why}"
                )
            else:
                frame.notify(f"Preferred leader elected for {plural(len(partitions), 'partition')}")

    with heading("Cluster"):
        for text, icon, path in (("Settings", "tune", "/brokers"), ("Reassignments", "move_down", "/reassignments")):
            ui.button(text, icon=icon, on_click=lambda _, path=path: go(path)).props(
                f"outline no-caps dense padding='4px 12px' data-testid=open-{text.lower()}"
            )
        button = ui.button("Elect preferred leaders", icon="balance", on_click=elect).props(
            "outline no-caps dense padding='4px 12px' data-testid=elect"
        )
        frame.offer(Action.ELECT_LEADERS, button)
    with card(""), ui.element("div").classes("ms-stats"):
        brokers_up = Stat("brokers up", test_id="brokers-up")
        controller = Stat("active controller", test_id="controller")
        skew = Stat("leader skew", test_id="skew")
        displaced = Stat("not on preferred leader", test_id="displaced")
        behind = Stat("under-replicated", test_id="under-replicated")
        offline = Stat("offline partitions", test_id="offline")
        moving = Stat("reassignments", test_id="moving")
        stored = Stat("on disk, all replicas")
    with grid("two"):
        with card("Partitions per broker", note="leaders and followers"):
            replicas = BarChart(test_id="chart-replicas", least_step=1)
        with card("Disk per broker", note="MB of logs"):
            disks = BarChart(test_id="chart-disks")
    with card("Brokers"):
        brokers = DataTable(
            [
                Column("id", "Broker", cell="link", width=84),
                Column("state", "State", cell="badge", width=108),
                Column("address", "Address", cell="nowrap", width=172),
                Column("rack", "Rack", width=60),
                Column("leads", "Leaders", count, right=True, width=92),
                Column("share", "Share of leaders", cell="bar", width=150),
                Column("replicas", "Replicas", count, right=True, width=88),
                Column("behind", "Not in sync", count, right=True, width=112),
                Column("disk", "Logs", size, right=True, width=92),
                Column("free", "Disk free", size, right=True, width=106),
            ],
            key="id",
            empty="No brokers",
            filtered=False,
            test_id="brokers",
        )
    with grid("two"):
        with card("Metadata quorum"):
            quorum_note = ui.label("").classes("ms-muted").props("data-testid=quorum-note")
            quorum = DataTable(
                [
                    Column("id", "Node", width=84),
                    Column("role", "Role", cell="badge", width=100),
                    Column("end", "Log end", count, right=True),
                    Column("lag", "Lag", count, right=True, width=80),
                    Column("caught_up", "Caught up", ago, right=True, width=112),
                ],
                key="id",
                empty="No quorum information",
                filtered=False,
                test_id="quorum",
            )
        with card("Reassignments in progress"):
            moves = DataTable(
                REASSIGNMENT_COLUMNS,
                key="partition",
                empty="No reassignments",
                filtered=False,
                test_id="reassignments",
            )

    def show(snapshot: Snapshot) -> None:
        rows = broker_rows(snapshot)
        led = {broker.id: snapshot.leader_counts.get(broker.id, 0) for broker in snapshot.brokers}
        held = {number: snapshot.replica_counts.get(number, 0) for number in led}
        out_of_sync = snapshot.once(_out_of_sync)
        total = max(1, sum(led.values()))
        mean = total / max(1, len(led))
        up = sum(broker.is_up for broker in snapshot.brokers)
        brokers_up.show(f"{up} / {len(snapshot.brokers)}", "bad" if up < len(snapshot.brokers) else "")
        quorum_leader = snapshot.quorum.leader if snapshot.quorum is not None else snapshot.controller
        controller.show(f"node {quorum_leader}" if quorum_leader >= 0 else "none", "" if quorum_leader >= 0 else "bad")
        skew.show(f"{max(led.values(), default=0) / mean - 1:+.0%}" if led else "–")
        wrong = not_preferred(snapshot)
        displaced.show(count(len(wrong)), "warn" if wrong else "")
        button.set_enabled(bool(wrong))
        few = snapshot.once(_under_replicated)
        behind.show(count(few), "warn" if few else "")
        none = snapshot.leader_counts.get(NO_LEADER, 0)
        offline.show(count(none), "bad" if none else "")
        moving.show(count(len(snapshot.reassignments)))
        stored.show(size(sum(disk.used_bytes for disk in snapshot.disks.values())))
        names = [f"broker {number}" for number in led]
        replicas.update(
            names, {"leaders": list(led.values()), "followers": [held[number] - led[number] for number in led]}
        )
        disks.update(
            names,
            {"logs": [round(snapshot.disks[n].used_bytes / 1e6, 2) if n in snapshot.disks else 0 for n in led]},
        )
        for row in rows:
            at = row["id"]
            assert isinstance(at, int)
            disk = snapshot.disks.get(at)
            percent = 100 * led[at] / total
            row |= {
                "share": f"{percent:.0f} %",
                "_bars": {"share": percent},
                "behind": out_of_sync.get(at, 0),
                "free": disk.free_bytes if disk is not None else None,
            }
        brokers.update(rows)
        quorum.update(quorum_rows(snapshot))
        known = snapshot.quorum
        quorum_note.set_text(
            "" if known is None or known.leader < 0 else f"epoch {known.epoch}, high watermark {known.high_watermark:,}"
        )
        moves.update(reassignment_rows(snapshot))

    frame.live(show)


def _out_of_sync(snapshot: Snapshot) -> Mapping[int, int]:
    """Replicas that are not in sync, by broker."""
    return Counter(number for each in snapshot.partitions for number in each.replicas if number not in each.isr)


def _under_replicated(snapshot: Snapshot) -> int:
    return sum(each.is_under_replicated for each in snapshot.partitions)
