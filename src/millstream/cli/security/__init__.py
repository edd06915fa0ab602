"""Commands on security: make the files of a secured cluster, find weak settings."""
