"""Exactly once, with real clients and real processes: consume-transform-produce loops while everything is killed.

`python -m tests.system.exactly_once --seed 7` runs a plan and prints what came of it; `test_exactly_once.py` is the
same under pytest. The nodes are those of `tests.system.chaos`. `copiers/` are the programs that copy, one for each
client library; `copier` is one of their processes, `lanes` those of one library with their topics and group; `feeder`
makes the input, in transactions of which some are aborted; `watchers` read all the time, with either isolation level;
`strikes` are the kills, `campaign` the order of events, and the history checker judges.
"""
