"""The web console: what a cluster does, and what to do about it, in a browser."""
