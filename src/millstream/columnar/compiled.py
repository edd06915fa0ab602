"""Chooses the implementation that reads and writes records: the compiled one if it was built, else plain Python.

`MILLSTREAM_PURE=1` selects plain Python. Both have the same functions and pass the same tests.
"""

import os
from types import ModuleType

from millstream.columnar import _pure

PURE_VARIABLE = "MILLSTREAM_PURE"


def compiled_or_none() -> ModuleType | None:
    try:
        from millstream.columnar import _fast
    except ImportError:
        return None
    return _fast


def choose() -> ModuleType:
    if os.environ.get(PURE_VARIABLE, "") not in ("", "0"):
        return _pure
    return compiled_or_none() or _pure


implementation = choose()
