"""Share groups: their members, the state of each shared partition, and how that state is kept."""
