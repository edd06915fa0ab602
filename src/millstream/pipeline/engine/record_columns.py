"""The columns that every decoded topic source has beside its value's: of the record, not of what it says."""

KEY = "_key"
TOPIC = "_topic"
PARTITION = "_partition"
OFFSET = "_offset"
TIMESTAMP = "_timestamp"
HEADERS = "_headers"
ERROR = "_error"

RECORD_COLUMNS = (KEY, TOPIC, PARTITION, OFFSET, TIMESTAMP, HEADERS, ERROR)
"""Left out of what a topic sink writes as the value, and of the right side of a join."""


def quoted(*names: str) -> str:
    """A column as SQL has it, whatever characters are in its name."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)
