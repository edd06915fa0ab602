"""The administration that cluster and broker commands use, and moves of replicas with a progress display."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millstream.cli.options import open_cluster
from millstream.cli.terminal import note, progress

if TYPE_CHECKING:
    from millstream.admin.cluster import ClusterAdmin, ClusterState
    from millstream.admin.moves import Mover


def open_admin(bootstrap: str, timeout: float, settings: list[str] | None) -> "ClusterAdmin":
    """The administration of the cluster that the shared options name. Requests are not repeated."""
    from millstream.admin.cluster import ClusterAdmin

    return ClusterAdmin(open_cluster(bootstrap, timeout, settings), attempts=1)


@contextmanager
def mover(admin: "ClusterAdmin", cluster: "ClusterState", throttle: int | None) -> Iterator["Mover"]:
    """A mover that shows its progress."""
    from millstream.admin.moves import Mover

    with progress() as display:
        task = display.add_task("partitions", total=None, info="") if display is not None else None

        def report(moved: int, total: int) -> None:
            if display is not None and task is not None:
                display.update(task, completed=moved, total=total)

        try:
            yield Mover(admin, cluster, throttle, report=report, note=note)
        except KeyboardInterrupt:
            note("the cluster finishes the moves that were started; the same command waits for them and does the rest")
            raise
