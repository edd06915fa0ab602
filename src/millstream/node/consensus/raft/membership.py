"""The voter set and kraft.version in force, as the log says, over the static voters of the settings."""

from collections.abc import Iterable

from millstream.node.consensus.raft.log import KRaftVersionRecord, PlacedControlRecord, VotersRecord
from millstream.node.consensus.raft.voter_set import OffsetHistory, VoterSet


class Membership:
    def __init__(self, static_voters: VoterSet) -> None:
        self._static = static_voters
        self._voters = OffsetHistory(static_voters)
        self._versions = OffsetHistory(0)

    @property
    def voters(self) -> VoterSet:
        return self._voters.latest

    @property
    def kraft_version(self) -> int:
        return self._versions.latest

    @property
    def changed_at(self) -> int:
        """Offset of the latest record that says who votes: another change has to wait until it is committed."""
        return max(self._voters.latest_offset, self._versions.latest_offset)

    def voters_while_uncommitted(self, high_watermark: int) -> tuple[VoterSet, ...]:
        """The set in force, and the one before it unless the change is known to be committed."""
        if self._voters.latest_offset < high_watermark:
            return (self._voters.latest,)
        return self._voters.latest, self._voters.at(self._voters.latest_offset)

    def voters_at(self, end_offset: int) -> VoterSet:
        return self._voters.at(end_offset)

    def kraft_version_at(self, end_offset: int) -> int:
        return self._versions.at(end_offset)

    def apply(self, placed: Iterable[PlacedControlRecord]) -> None:
        for entry in placed:
            match entry.record:
                case VotersRecord(voters):
                    self._voters.add(entry.offset, voters)
                case KRaftVersionRecord(version):
                    self._versions.add(entry.offset, version)
                case _:
                    pass

    def truncate_to(self, end_offset: int) -> None:
        self._voters.truncate_to(end_offset)
        self._versions.truncate_to(end_offset)

    def replace_by(self, placed: Iterable[PlacedControlRecord]) -> None:
        """A snapshot took the place of the log."""
        self._voters = OffsetHistory(self._static)
        self._versions = OffsetHistory(0)
        self.apply(placed)

    def forget_before(self, start_offset: int) -> None:
        self._voters.forget_before(start_offset)
        self._versions.forget_before(start_offset)
