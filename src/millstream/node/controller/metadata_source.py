"""What controller and broker need of the quorum: a log to append decisions to, and the image of what is committed."""

from collections.abc import Callable, Sequence
from typing import Protocol

from millstream.node.metadata.image import MetadataDelta, MetadataImage
from millstream.node.metadata.records import MetadataRecord


class ImageSource(Protocol):
    """The node's copy of the committed metadata."""

    @property
    def image(self) -> MetadataImage: ...

    def subscribe(self, on_change: Callable[[MetadataDelta], None]) -> None:
        """Calls back, in the order of subscription, each time after `image` was replaced."""
        ...


class DecisionLog(Protocol):
    """The metadata log as its leader sees it."""

    @property
    def epoch(self) -> int: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        ...

    def append(self, records: Sequence[MetadataRecord]) -> int:
        """Appends one batch in the leader's epoch; its last offset. NOT_CONTROLLER when this node does not lead."""
        ...


class Leadership(Protocol):
    """Who leads the quorum, as far as this node knows."""

    @property
    def leader_id(self) -> int | None: ...

    def leader_address(self) -> tuple[str, int] | None: ...
