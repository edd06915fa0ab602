"""The metadata quorum of a node: runs raft on a log, files and connections. Every node has one, as voter or
observer."""
