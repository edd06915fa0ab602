"""Which walk over records is used: the compiled one where it was built, else the one in plain Python.

`MILLSTREAM_PURE=1` forces the plain one. Both pass the same tests.
"""

import os

from millstream.formats.records.walking import check_records, find_time, latest_time, schema_faults, seek_offset

__all__ = ["IS_COMPILED", "check_records", "find_time", "latest_time", "schema_faults", "seek_offset"]

IS_COMPILED = False
if os.environ.get("MILLSTREAM_PURE", "") in ("", "0"):
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
        pass  # it was not built: the other does the same, more slowly
