"""Reading and changing clusters, topics, groups, offsets and transactions: the CLI, REST and the console use it."""
