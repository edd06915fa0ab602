"""Consensus on the metadata: raft as a pure state machine, and the quorum that runs it on a node."""
