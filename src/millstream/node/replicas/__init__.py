"""Replicas of partitions: leader and follower of a partition, fetchers, in-sync replicas."""
