"""The types of all requests and responses, for annotations: `from ...wire_types import MetadataRequest`.

mypy reads them in `wire_types.pyi`, which `tools/generate_wire_types.py` writes from `wire.schema`. At run time there
are no such classes: a decoded message is a `Message` with the fields of its schema, and a response is a dictionary.
"""

from typing import Any

from millstream.formats.protocol.structure import Message


def __getattr__(name: str) -> Any:
    if "Request" in name or name == "Decoded":
        return Message
    if "Response" in name:
        return dict
    raise AttributeError(f"module {__name__} has no attribute {name}")
