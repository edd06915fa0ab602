"""The log cleaner: compacted logs keep the latest record of each key.

A pass over one log first maps its dirty part (`mapping` fills a `key_map`), then copies groups of segments without what
is superseded (`copying`), and puts each copy in the place of its group (`swap`). `log_cleaner` says which log is next.
It is the one place of the broker that opens batches, so it runs in threads, in small pieces.
"""
