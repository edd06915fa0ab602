"""Tiered storage: closed segments go to an object store, and are read from there when this disk no longer has them."""
