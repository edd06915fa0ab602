"""Tests of the friendly client."""
