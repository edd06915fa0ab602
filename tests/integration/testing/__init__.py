"""Tests of the embedded broker and the pytest plugin."""
