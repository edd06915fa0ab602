"""Frames of clients that have not logged in do not take the memory for requests of others."""

import struct
from contextlib import ExitStack

from millstream.testing import EmbeddedBroker
from tests.sasl import Issuer, plain, sasl_settings
from tests.wire import Wire, batch, framed, request


def test_large_claims_before_the_login_do_not_stop_producers(issuer: Issuer) -> None:
    settings = {**sasl_settings(issuer), "queued.max.request.bytes": 2 << 20}
    with EmbeddedBroker(settings) as broker, ExitStack() as opened:
        producer = opened.enter_context(Wire(broker.bootstrap_servers, timeout=8))
        assert plain(producer).error_code == 0
        producer.create_topic("memory")
        for _ in range(8):
            stranger = opened.enter_context(Wire(broker.bootstrap_servers))
            begin = request("sasl_handshake", 1, {"mechanism": "PLAIN"})
            stranger.send_raw(struct.pack(">i", 500_000) + begin)  # and nothing more
        # A login is possible meanwhile, also in pieces, and requests of those who have logged in are served.
        other = opened.enter_context(Wire(broker.bootstrap_servers, timeout=8))
        whole = framed(request("sasl_handshake", 1, {"mechanism": "PLAIN"}))
        other.send_raw(whole[:6])
        other.send_raw(whole[6:])
        assert other.receive("sasl_handshake", 1)[1].error_code == 0
        assert producer.produce("memory", batch(b"x" * 600_000)).error_code == 0
