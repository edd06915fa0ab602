"""Which leader epoch began at which offset; answers OffsetForLeaderEpoch as Kafka defines it.

Kept in `leader-epoch-checkpoint`. Epochs and their start offsets both increase; an epoch in which nothing was written
gives way to the next one that starts at the same offset.
"""

from bisect import bisect_right

from millstream.node.storage.file_formats import encode_epochs

UNDEFINED = -1


class LeaderEpochs:
    __slots__ = ("_epochs", "_starts", "latest")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs = [epoch for epoch, _ in entries or ()]
        self._starts = [start for _, start in entries or ()]
        self.latest = UNDEFINED
        self._refresh()

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def to_bytes(self) -> bytes:
        return encode_epochs(self.entries())

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` begins at `start_offset`; True when that was news."""
        if epoch <= self.latest:
            return False
        while self._starts and self._starts[-1] >= start_offset:
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        return True

    def epoch_of(self, offset: int) -> int:
        """The epoch in which the record at `offset` was written, or UNDEFINED."""
        slot = bisect_right(self._starts, offset) - 1
        return self._epochs[slot] if slot >= 0 else UNDEFINED

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(greatest known epoch not after `epoch`, the offset where it ends); (-1, -1) when the log does not know."""
        if epoch == UNDEFINED or epoch > self.latest:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        after = bisect_right(self._epochs, epoch)
        if after == 0:
            return epoch, self._starts[0]  # older than all we know: it ended where our first epoch begins
        return self._epochs[after - 1], self._starts[after]

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forget epochs that begin at or after the new end; True when something was forgotten."""
        keep = bisect_right(self._starts, end_offset - 1)
        if keep == len(self._starts):
            return False
        del self._epochs[keep:], self._starts[keep:]
        self._refresh()
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forget epochs that ended before the new start; the one that covers it now begins there."""
        slot = bisect_right(self._starts, start_offset) - 1
        if slot < 0 or (slot == 0 and self._starts[0] == start_offset):
            return False
        del self._epochs[:slot], self._starts[:slot]
        self._starts[0] = start_offset
        return True

    def _refresh(self) -> None:
        self.latest = self._epochs[-1] if self._epochs else UNDEFINED
