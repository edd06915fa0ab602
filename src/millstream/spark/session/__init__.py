"""Spark sessions: where Spark and Java are, and how a session starts."""

from millstream.spark.session.session import start_session

__all__ = ["start_session"]
