"""Replication of one partition, pure: what its leader knows of the followers, and what a follower does next."""
