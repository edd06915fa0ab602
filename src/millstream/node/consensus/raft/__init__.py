"""Consensus on the metadata log, KRaft in shape, as a pure state machine: no clock, no disk, no network, no asyncio.

`RaftReplica` (replica.py) is the whole of it. Time, chance, the log and the quorum-state file are given to it; what it
wants sent is in its outbox and what it wants known is in its events. The driver's loop is:

    call one input (tick, a request, a response, flushed, append ...)
    send every `Send` of `drain_sends()`; later give its answer to `on_response`, or its failure to `on_request_failed`
    handle every event of `drain_events()` in order
    if log.flushed_offset < log.end_offset: flush the log in the background, then call `on_flushed`
    call `tick` again at `next_deadline_ms` at the latest

Requests of other replicas are answered at once, or with `Parked(token)`: the answer then comes as the event
`Responded(token, answer)`. Replication is by pull: followers fetch, and the leader learns from the offset of a fetch
what a follower holds, so a fetch is only sent once everything below its offset is on disk.

Modules: messages (requests and answers), voter_set and membership (who votes, by log offset), log (what raft needs of
the log and of the quorum-state file), events (what the driver is told), settings (timeouts), outbox (requests on their
way), roles (the roles and their transitions), replica_core, elections, following, leading with leadership and
voter_changes (what the roles do), replica (all of it together).
"""
