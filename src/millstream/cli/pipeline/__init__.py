"""Commands on pipelines: create, check, run, watch, analyse."""
