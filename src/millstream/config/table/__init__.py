"""The declarations: one module per family of settings. Nothing here reads or decides; `catalog.py` is the whole."""
