"""Replication of one partition, pure: what its leader knows of the followers, and how a follower fetches."""
