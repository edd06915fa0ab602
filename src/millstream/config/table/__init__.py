"""The declarations: one module per family of settings. Nothing here reads or decides; see `catalog.py` for the whole."""
