"""What stops a pass over a log."""


class UncleanableError(Exception):
    """The log holds something that cannot be read; it is left as it is."""
