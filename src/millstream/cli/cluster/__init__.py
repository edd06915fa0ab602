"""Commands on clusters: start one, show its state, balance it, change its quorum."""
