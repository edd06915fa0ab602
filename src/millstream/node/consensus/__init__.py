"""Consensus on the metadata log: raft, pure, and the quorum that drives it."""
