"""Replicas of partitions: leader and follower roles, fetchers, in-sync sets."""
