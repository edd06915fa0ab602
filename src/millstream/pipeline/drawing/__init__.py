"""Pictures of pipelines: a layered layout of our own, drawn as SVG or with box characters."""
