"""Hot keys: which partitions and keys carry the traffic of a topic."""
