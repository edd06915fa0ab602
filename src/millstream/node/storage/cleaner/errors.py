"""The error that ends a pass over a log. In its own file, because the compiled loops import it."""


class UncleanableError(Exception):
    """The log has a batch that cannot be read; the log is left as it is."""
