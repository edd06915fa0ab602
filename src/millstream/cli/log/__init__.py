"""Commands on log files: dump and check them, show compaction."""
