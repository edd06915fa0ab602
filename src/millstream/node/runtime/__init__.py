"""The real world: clock, disk, threads, signals, event loop. Joins the other rooms into a running node."""
