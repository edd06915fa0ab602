"""Tests of the docs site in a browser."""
