"""The pure part of quotas: which quota applies, and how long to throttle."""
