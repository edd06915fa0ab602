"""A producer may be fenced only if a request for its transactional id may have been carried out since it has it."""

from millstream.simulator.clients.transaction_tracker import Claims


def test_a_claim_without_later_responses_is_unchanged() -> None:
    claims = Claims()
    claims.claim("tx", "other").responded_at = 1.0
    claims.claim("tx", "me").responded_at = 2.0
    claims.claim("another", "other").responded_at = 3.0
    assert not claims.may_have_changed("tx", "me", since=2.0)
    assert not claims.may_have_changed("unknown", "me", since=2.0)


def test_another_client_has_asked() -> None:
    claims = Claims()
    claims.claim("tx", "me").responded_at = 2.0
    claims.claim("tx", "other").responded_at = 2.5
    assert claims.may_have_changed("tx", "me", since=2.0)
    assert not claims.may_have_changed("tx", "me", since=3.0)


def test_a_request_without_a_response_may_come_at_any_time() -> None:
    for by in ("other", "me"):
        claims = Claims()
        claims.claim("tx", by)
        claims.claim("tx", "me").responded_at = 2.0
        assert claims.may_have_changed("tx", "me", since=2.0)
