"""The pure part of client metrics: which metrics a client pushes and when, and OTLP as points."""
