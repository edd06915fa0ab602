"""What a page tells a person who asked for something that cannot be done."""


class UserError(Exception):
    """The text says why, and what to do."""
