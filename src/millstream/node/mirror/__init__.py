"""Mirroring: topics of another cluster, copied batch by batch under the same offsets."""
