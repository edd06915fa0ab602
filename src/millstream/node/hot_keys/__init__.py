"""Hot keys: the partitions and keys with most of a topic's traffic."""
