"""Consensus on the metadata log as a pure state machine, after KRaft: no clock, no disk, no network, no asyncio.

`RaftReplica` (replica.py) is its interface. The caller (the driver) gives it the time, randomness, the log and the
quorum-state file. Requests to send are in its outbox, and changes to report are in its events. The driver's loop is:

    call one input (tick, a request, a response, on_flushed, append ...)
    send every `Send` of `drain_sends()`; later call `on_response` or `on_request_failed` for it
    handle every event of `drain_events()` in order
    if log.flushed_offset < log.end.offset: flush the log in the background, then call `on_flushed`
    call `tick` again at `next_deadline_ms` at the latest

A request of another replica gets its response at once, or `Parked(token)`: then the response is in the later event
`Responded(token, response)`. Replication is by pull. The offset of a fetch tells the leader what the follower has on
disk, so a follower sends a fetch only when everything below its offset is flushed.

Modules: replica (the state of a replica, its inputs and role changes), roles (the interface of a role; unattached and
resigned), elections (prospective and candidate), follower, leader, voter_changes (AddVoter, RemoveVoter, UpdateVoter),
messages (requests and responses), events, voter_set, log (the log and the quorum-state file as raft needs them, and the
voters that the log names), outbox (requests in flight), settings (timeouts and limits).
"""
