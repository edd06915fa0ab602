"""Spark sessions: finding Spark and Java, and starting a session."""

from millstream.spark.session.session import start_session

__all__ = ["start_session"]
