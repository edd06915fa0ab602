"""The metadata quorum of a real node: raft on a log, files and a wire. Every node has one, voter or observer."""
