"""The log on disk, in Kafka's formats: segments and their indexes, partition logs, recovery, retention, producer state.

Storage knows no clock, no thread and no event loop: time comes as an argument, and what may block comes back as a
`Job`.
"""
