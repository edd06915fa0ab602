"""Record batches to Arrow columns and back; the one place that opens batches by the million."""
