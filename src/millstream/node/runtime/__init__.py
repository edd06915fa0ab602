"""A node on a real machine: clock, disk, threads, signals, event loop. Composes the other packages."""
