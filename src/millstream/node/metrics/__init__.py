"""What a node tells of itself: metrics for Prometheus, and whether it lives and is ready.

Whoever does the work counts, in plain integers and `measures.Histogram`s; here they are only read, when somebody asks.
One module per subject (`of_topics`, `of_quorum`, ...) declares its families and knows where their values are. Nothing
here is on the path of a request, and nothing runs while nobody asks.
"""
