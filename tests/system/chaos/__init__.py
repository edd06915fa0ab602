"""Chaos with real processes: a cluster on this machine, real clients, real faults, and a checked history.

`python -m tests.system.chaos --seed 7` runs a plan of faults and prints what came of it; `test_chaos.py` is the same
under pytest. A run is contained in namespaces of its own (`containment`), in which every node has a host of its own on
a network whose links can be cut (`network`) and a small disk that can be filled. `nodes` and `cluster` are the system
under test, `workload` its clients, `nemeses` the faults, `campaign` the order of events, `replicas` the last look at
the disks, `summary` the table.
"""
