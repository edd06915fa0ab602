"""Pictures of pipelines: a layered layout, drawn as SVG or with box characters (ADR 27)."""
