"""What a leader keeps while it leads: how far every replica is, who waits for an answer, the majority's end."""

from dataclasses import dataclass, field
from uuid import UUID

from millstream.node.consensus.raft.messages import AddVoter, Fetch, ParkedResponse, ReplicaProgress
from millstream.node.consensus.raft.voter_set import ReplicaKey, Voter, VoterSet

FORGET_OBSERVER_MS = 300_000
UNKNOWN = -1


@dataclass(slots=True)
class Progress:
    """One follower or observer, as its fetches show it."""

    key: ReplicaKey
    end_offset: int = UNKNOWN
    last_fetch_ms: int = UNKNOWN
    last_caught_up_ms: int = UNKNOWN
    leader_end_at_last_fetch: int = UNKNOWN
    first_fetch_ms: int = UNKNOWN

    def heard(self, now_ms: int) -> None:
        if self.first_fetch_ms == UNKNOWN:
            self.first_fetch_ms = now_ms
        self.last_fetch_ms = now_ms

    def fetched(self, offset: int, leader_end: int, now_ms: int) -> None:
        if offset >= leader_end:
            self.last_caught_up_ms = now_ms
        elif self.leader_end_at_last_fetch != UNKNOWN and offset >= self.leader_end_at_last_fetch:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.end_offset = offset
        self.heard(now_ms)
        self.leader_end_at_last_fetch = leader_end

    def described(self) -> ReplicaProgress:
        return ReplicaProgress(
            replica=self.key,
            log_end_offset=self.end_offset,
            last_fetch_ms=self.last_fetch_ms,
            last_caught_up_ms=self.last_caught_up_ms,
        )


@dataclass(slots=True)
class ParkedFetch:
    request: Fetch
    expires_ms: int


@dataclass(slots=True)
class ParkedChange:
    """A change of the voters, until its record is committed."""

    offset: int
    expires_ms: int
    committed: ParkedResponse
    timed_out: ParkedResponse
    deposed: ParkedResponse


@dataclass(slots=True)
class ParkedJoin:
    """A new voter, until it has caught up."""

    request: AddVoter
    expires_ms: int


@dataclass(slots=True)
class Leadership:
    """The role of leader, from election to resignation."""

    me: ReplicaKey
    epoch: int
    start_offset: int
    """Offset of this epoch's LeaderChange record: nothing is committed by counting before it is (Raft, 5.4.2)."""
    started_ms: int
    check_quorum_ms: int
    announced: bool = False
    """`Leading` was told."""
    progress: dict[ReplicaKey, Progress] = field(default_factory=dict)
    fetches: dict[int, ParkedFetch] = field(default_factory=dict)
    joins: dict[int, ParkedJoin] = field(default_factory=dict)
    changes: dict[int, ParkedChange] = field(default_factory=dict)
    introduced: dict[int, Voter] = field(default_factory=dict)
    """What static voters said of themselves in UpdateVoter."""

    def of(self, key: ReplicaKey) -> Progress:
        return self.progress.setdefault(key, Progress(key))

    def of_voter(self, voter: Voter) -> Progress | None:
        """A static voter names no directory: whoever fetched last under its id."""
        if voter.key.directory_id is not None:
            return self.progress.get(voter.key)
        latest = None
        for key, progress in self.progress.items():
            if key.id == voter.key.id and (latest is None or progress.last_fetch_ms > latest.last_fetch_ms):
                latest = progress
        return latest

    def is_impostor(self, key: ReplicaKey, now_ms: int, window_ms: int) -> bool:
        """Two live nodes under one static id: an older one went on fetching after this one came. This one has to go."""
        own = self.progress.get(key)
        return own is not None and any(
            other.key.id == key.id
            and other.key != key
            and other.first_fetch_ms < own.first_fetch_ms < other.last_fetch_ms
            and other.last_fetch_ms >= now_ms - window_ms
            for other in self.progress.values()
        )

    def majority_end(self, voters: VoterSet, own_flushed: int) -> int:
        """The offset that a majority of the voters has on disk."""
        ends = []
        for voter in voters:
            progress = self.of_voter(voter)
            own = voters.has(self.me) and voter.id == self.me.id
            ends.append(own_flushed if own else progress.end_offset if progress is not None else UNKNOWN)
        ends.sort(reverse=True)
        return ends[voters.majority - 1] if ends else UNKNOWN

    def resigns_ms(self, voters: VoterSet) -> int | None:
        """When the silence of a majority becomes too long; None when this replica is a majority."""
        heard_ms = self.majority_heard_ms(voters)
        return None if heard_ms is None else heard_ms + self.check_quorum_ms

    def majority_heard_ms(self, voters: VoterSet) -> int | None:
        """Since when a majority, this replica included, has fetched; None when this replica is a majority."""
        needed = voters.majority - (1 if voters.has(self.me) else 0)
        if needed <= 0:
            return None
        heard = []
        for voter in voters:
            if voter.id == self.me.id and voters.has(self.me):
                continue
            progress = self.of_voter(voter)
            heard.append(max(self.started_ms, progress.last_fetch_ms if progress is not None else UNKNOWN))
        heard.sort(reverse=True)
        return heard[needed - 1]

    def silent_since_ms(self, voter: Voter) -> int:
        """When that voter last fetched; -1 when it has not in this epoch."""
        progress = self.of_voter(voter)
        return progress.last_fetch_ms if progress is not None else UNKNOWN

    def known_directories(self) -> dict[int, UUID]:
        """The directory each node showed in its latest fetch."""
        latest: dict[int, Progress] = {}
        for progress in self.progress.values():
            seen = latest.get(progress.key.id)
            if seen is None or progress.last_fetch_ms >= seen.last_fetch_ms:
                latest[progress.key.id] = progress
        known = {node_id: progress.key.directory_id for node_id, progress in latest.items()}
        known[self.me.id] = self.me.directory_id
        return {node_id: directory for node_id, directory in known.items() if directory is not None}

    def forget_gone(self, voters: VoterSet, now_ms: int) -> None:
        for key in [key for key in self.progress if not voters.has(key)]:
            if self.progress[key].last_fetch_ms < now_ms - FORGET_OBSERVER_MS:
                del self.progress[key]

    def preferred_successors(self, voters: VoterSet) -> tuple[Voter, ...]:
        """The other voters, those with the longest logs first."""

        def end(voter: Voter) -> int:
            progress = self.of_voter(voter)
            return progress.end_offset if progress is not None else UNKNOWN

        return tuple(sorted((v for v in voters if v.id != self.me.id), key=lambda voter: (-end(voter), voter.id)))
