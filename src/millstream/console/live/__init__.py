"""What open pages show of the cluster: read once a second for all of them, by one thread."""
