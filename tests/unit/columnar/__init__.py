"""Record batches to Arrow columns and back, over both implementations."""
