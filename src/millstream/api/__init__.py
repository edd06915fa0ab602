"""From frames to handlers and back: the table of APIs a listener answers, and the dispatcher that serves it."""
