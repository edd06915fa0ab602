"""Chooses the inner loops of the cleaner: the compiled ones if they were built, else those in Python.

`MILLSTREAM_COMPILED=refuse` forces those in Python. Both pass the same tests.
"""

from millstream.compilation import REFUSE, wanted
from millstream.node.storage.cleaner.key_map import KeyMap
from millstream.node.storage.cleaner.records import kept_records

__all__ = ["KeyMap", "kept_records"]

if wanted() != REFUSE:
    try:
        from millstream.node.storage.cleaner._loops import KeyMap, kept_records
    except ImportError:
        pass  # not built: the Python version does the same, more slowly
