"""The log on disk, in Kafka's formats: segments, partition logs, recovery, retention, producer state.

Storage uses no clock, no thread and no event loop: the time is an argument, and work that may block is returned as a
`Job`.
"""
