"""A listener of the quorum that passes on one thing: who leads may have changed."""

from collections.abc import Callable, Sequence

from millstream.node.metadata.records import MetadataRecord


class LeaderWatch:
    """Subscribe it to the quorum after the controller, which then is active before anybody is told."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._subscribers.append(on_change)

    def leader_changed(self, leader_id: int | None, epoch: int) -> None:
        self._tell()

    def leading(self, epoch: int) -> None:
        self._tell()

    def no_longer_leading(self) -> None:
        self._tell()

    def committed(self, records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        return

    def reset(self, image_records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        return

    def _tell(self) -> None:
        for on_change in self._subscribers:
            on_change()
