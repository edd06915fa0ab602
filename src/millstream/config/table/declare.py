"""Short forms in which the tables are written: one function per type of setting."""

from typing import TypedDict

from typing_extensions import Unpack  # noqa: UP035
