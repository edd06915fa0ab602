"""Connections and listeners over real sockets, on asyncio and on uvloop."""
