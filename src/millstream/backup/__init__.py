"""Backups of a cluster: consistent metadata and all records, in a directory or a bucket; restored to new nodes."""
