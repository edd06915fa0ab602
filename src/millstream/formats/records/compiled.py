"""Selects the walker of records: the compiled one if it was built, else the one in plain Python.

`MILLSTREAM_COMPILED=refuse` selects plain Python. Both pass the same tests.
"""

from millstream.compilation import REFUSE, wanted
from millstream.formats.records.walking import check_records, find_time, latest_time, schema_faults, seek_offset

__all__ = ["IS_COMPILED", "check_records", "find_time", "latest_time", "schema_faults", "seek_offset"]

IS_COMPILED = False
if wanted() != REFUSE:
    try:
        from millstream.formats.records._walking import (
            check_records,
            find_time,
            latest_time,
            schema_faults,
            seek_offset,
        )

        IS_COMPILED = True
    except ImportError:
        pass  # not built
