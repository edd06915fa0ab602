"""Chooses the implementation that reads and writes records: the compiled one if it was built, else plain Python.

`MILLSTREAM_COMPILED=refuse` selects plain Python. Both have the same functions and pass the same tests.
"""

from types import ModuleType

from millstream.columnar import _pure
from millstream.compilation import REFUSE, wanted


def compiled_or_none() -> ModuleType | None:
    try:
        from millstream.columnar import _fast
    except ImportError:
        return None
    return _fast


def choose() -> ModuleType:
    if wanted() == REFUSE:
        return _pure
    return compiled_or_none() or _pure


implementation = choose()
