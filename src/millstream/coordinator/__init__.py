"""Coordinators as pure state machines: groups, offsets, shares. Time is an argument, records are the only memory.

An operation looks at the state and returns an `Outcome`: records to append and an answer. The shell in `broker/`
appends the records, replays them into the state, and lets the answer go once they are committed. After a restart or a
change of leader, replaying the log gives the same state again. Nothing here knows a socket, a log or a clock.
"""
