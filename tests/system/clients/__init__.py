"""Unmodified Kafka clients against the broker: every client reads what every other wrote, byte for byte.

`programs/`, `java/`, `go/` and `node/` hold one small program per client, all speaking the same line protocol
(`programs/README.md`); `client_program.py` starts and talks to them. `MILLSTREAM_TEST_BROKER=apache` runs everything
here against Apache Kafka instead, which tells a wrong expectation from a wrong broker.
"""
