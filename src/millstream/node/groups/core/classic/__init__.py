"""Classic groups: members join, the leader among them assigns the partitions, all members get their assignment.

`groups.py` has the requests and the rebalance, `group.py` the state of one group.
"""
