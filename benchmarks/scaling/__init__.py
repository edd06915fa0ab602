"""How cost grows with partitions, connections, groups, members of a group, batch size and replicas."""
