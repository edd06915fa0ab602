"""How long partitions take no writes when a node hangs or is cut off, and whether load alone gets a broker fenced."""
