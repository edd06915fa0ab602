"""Metrics of a node for Prometheus, liveness and readiness.

The code that does the work counts, in plain integers and `Histogram`s. This package only reads the values when a page
is requested. One module per area declares its metric families and knows where their values are. Nothing here is on the
path of a request.
"""
