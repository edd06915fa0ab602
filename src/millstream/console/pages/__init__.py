"""The pages, each in a module of its own that registers itself when it is imported."""
