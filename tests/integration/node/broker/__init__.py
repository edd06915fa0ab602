"""Each API over the real wire: what clients do not reach by themselves."""
