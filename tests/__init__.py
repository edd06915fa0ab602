"""Tests mirror `src/`, room by room; `fuzz/`, `faults/` and `clients/` try a real broker from outside."""
