"""Which inner loops the cleaner uses: the compiled ones where they were built, else those in plain Python.

`MILLSTREAM_PURE=1` forces the plain ones. Both pass the same tests.
"""

import os

from millstream.node.storage.cleaner.key_map import KeyMap
from millstream.node.storage.cleaner.records import kept_records

__all__ = ["KeyMap", "kept_records"]

if os.environ.get("MILLSTREAM_PURE", "") in ("", "0"):
    try:
        from millstream.node.storage.cleaner._loops import KeyMap, kept_records
    except ImportError:
        pass  # it was not built: the other does the same, more slowly
