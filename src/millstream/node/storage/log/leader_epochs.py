"""The leader epochs of a log and their start offsets, in memory and in the file `leader-epoch-checkpoint`.

They serve OffsetForLeaderEpoch as Kafka defines it. Epochs and start offsets both increase. An epoch without records is
replaced by the next one that starts at the same offset.
"""

import logging
from bisect import bisect_right

from millstream.node.storage.disk import Disk
from millstream.node.storage.file_formats import LEADER_EPOCHS, encode_epochs

UNDEFINED = -1
_log = logging.getLogger("millstream.storage")


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
        """Note that `epoch` begins at `start_offset`; True if it was not known."""
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
        """(greatest known epoch not after `epoch`, the offset where it ends); (-1, -1) when unknown."""
        if epoch == UNDEFINED or epoch > self.latest:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        after = bisect_right(self._epochs, epoch)
        if after == 0:
            return epoch, self._starts[0]  # older than all known epochs: it ended where the first of them begins
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


class LeaderEpochFile:
    """The leader epochs of an open log. Memory never has an epoch that the file does not have.

    The file may have epochs that were truncated, where the disk had no room to write it: loading removes them again.
    """

    __slots__ = ("_disk", "_is_stale", "_path", "epochs", "flushed_version", "version")

    def __init__(self, disk: Disk, directory: str, epochs: LeaderEpochs) -> None:
        self._disk = disk
        self._path = f"{directory}/{LEADER_EPOCHS}"
        self.epochs = epochs
        self.version, self.flushed_version = 1, 0
        """Number of writes of the file, and the number of the last one that is on stable storage."""
        self._is_stale = False
        """Whether the file has epochs that were truncated."""

    @property
    def path(self) -> str:
        return self._path

    def begin(self, epoch: int, start_offset: int) -> None:
        """Note that an epoch begins, in memory and in the file, or, with an OSError, in neither."""
        before = self.epochs
        self.epochs = LeaderEpochs(before.entries())
        self.epochs.assign(epoch, start_offset)
        try:
            if before.latest < 0:
                # The first entry of a log needs no atomic replacement: nothing can be lost yet.
                self._disk.write_bytes(self._path, self.epochs.to_bytes())
                self._saved()
            else:
                self._save()
        except OSError:
            self.epochs = before
            raise

    def repair(self) -> None:
        """Write a stale file again. Called before an append, because the file has an epoch that begins there."""
        if self._is_stale:
            self._save()

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forget epochs that begin at or after the new end; True when something was forgotten."""
        is_changed = self.epochs.truncate_from_end(end_offset)
        if is_changed:
            self._save_if_possible()
        return is_changed

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that ended before the new start. It does no harm if the file keeps them."""
        if self.epochs.truncate_from_start(start_offset):
            try:
                self._save()
            except OSError as error:
                _log.warning("leader_epochs_not_saved file=%s error=%s", self._path, error)

    def forget_after(self, epoch: int) -> int | None:
        """Forget later epochs; the offset at which the first of them began, None if there was none."""
        entries = self.epochs.entries()
        kept = [entry for entry in entries if entry[0] <= epoch]
        if len(kept) == len(entries):
            return None
        self.epochs = LeaderEpochs(kept)
        self._save_if_possible()
        return entries[len(kept)][1]

    def replace(self, entries: list[tuple[int, int]]) -> None:
        """Other epochs instead of these, in memory and in the file, or, with an OSError, in neither."""
        before = self.epochs
        self.epochs = LeaderEpochs(entries)
        try:
            self._save()
        except OSError:
            self.epochs = before
            raise

    def clear(self) -> None:
        self.epochs = LeaderEpochs()
        self._save_if_possible()

    def _save(self) -> None:
        self._disk.write_atomically(self._path, self.epochs.to_bytes(), durable=False)
        self._saved()

    def _save_if_possible(self) -> None:
        try:
            self._save()
        except OSError as error:
            _log.warning("leader_epochs_not_saved file=%s error=%s", self._path, error)
            self._is_stale = True

    def _saved(self) -> None:
        self.version += 1
        self._is_stale = False
