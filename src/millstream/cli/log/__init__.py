"""Commands on log files: dump them, estimate compaction."""
