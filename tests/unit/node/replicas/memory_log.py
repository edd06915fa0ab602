"""A partition's log in memory, as leader and follower of the pure room see it; a record is an epoch and a value."""

from millstream.node.storage.log.leader_epochs import LeaderEpochs

Record = tuple[int, str]


class MemoryLog:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.log_start_offset = 0
        self.epochs = LeaderEpochs()

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest

    def end_offset_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset(epoch, self.log_end_offset)

    def begin_epoch(self, epoch: int) -> None:
        self.epochs.assign(epoch, self.log_end_offset)

    def append(self, epoch: int, value: str) -> int:
        self.epochs.assign(epoch, self.log_end_offset)
        self.records.append((epoch, value))
        return self.log_end_offset - 1

    def append_as_follower(self, offset: int, records: list[Record]) -> None:
        assert offset == self.log_end_offset
        for epoch, value in records:
            self.append(epoch, value)

    def read(self, offset: int, count: int) -> list[Record]:
        at = offset - self.log_start_offset
        return self.records[at : at + count]

    def at(self, offset: int) -> Record | None:
        index = offset - self.log_start_offset
        return self.records[index] if 0 <= index < len(self.records) else None

    def truncate_to(self, offset: int) -> int:
        del self.records[max(offset - self.log_start_offset, 0) :]
        self.epochs.truncate_from_end(self.log_end_offset)
        return self.log_end_offset

    def restart_at(self, offset: int, now_ms: int) -> None:
        self.records.clear()
        self.log_start_offset = offset
        self.epochs = LeaderEpochs()

    def delete_before(self, offset: int) -> None:
        assert offset <= self.log_end_offset
        if offset > self.log_start_offset:
            del self.records[: offset - self.log_start_offset]
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)
