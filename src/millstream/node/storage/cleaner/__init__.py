"""The log cleaner: compacted logs keep the latest record of each key.

A pass over one log maps its dirty part into a `key_map`, then copies groups of segments without superseded records
(`copying`), and replaces each group by its copy (`segment_copy`). `cleaning` runs a pass, `log_cleaner` chooses the
next log. The cleaner decompresses batches, so it runs in threads, in small steps.
"""
