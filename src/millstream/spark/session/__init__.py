"""Spark sessions: finding Spark and Java, and starting a session."""

from millstream.spark.session.session import start_query, start_session, tune

__all__ = ["start_query", "start_session", "tune"]
