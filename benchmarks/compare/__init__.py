"""Millstream beside Apache Kafka: the same load on both, in alternation (`python -m benchmarks.compare`).

A `Target` is a broker under test, a `Load` is one kind of work with the measures it yields, `runner` alternates the
targets and takes medians, `report` and `chart` show the ratios. No load knows which broker it talks to.
"""
