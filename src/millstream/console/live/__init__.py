"""The state of the cluster for all open pages, read about once per second by one thread."""
