"""Invariants: what must hold at every time of every run, checked against observations of the cluster."""
