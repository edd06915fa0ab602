"""What the pages of queues (share groups) know and do: records by state, settings, dead letters and their redrive."""
