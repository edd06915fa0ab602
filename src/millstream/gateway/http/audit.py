"""The audit lines of the gateway: who was refused, and who changed something, through HTTP and through the console.

With pass-through the brokers record all of it as well, in `__millstream_audit`, by the user; only the gateway knows
roles, permissions on subjects, single sign-on, and the address of the caller. One line of the log for each event
(`millstream.gateway.audit`), a JSON document with the names of the brokers' events (docs/audit.md). Writing and reading
records is not recorded. Never with bodies, queries or credentials.
"""

import json
import logging
import time

_log = logging.getLogger("millstream.gateway.audit")
_LONGEST = 300
AUTHENTICATION, AUTHORIZATION, ADMINISTRATION = "authentication", "authorization", "administration"


def record(kind: str, result: str, user: str, address: str, **more: object) -> None:
    """`result`: success, failure or denied."""
    event: dict[str, object] = {
        "version": 1,
        "time_ms": time.time_ns() // 1_000_000,
        "kind": kind,
        "result": result,
        "principal": f"User:{user[:_LONGEST] or 'ANONYMOUS'}",
        "address": address,
    }
    event |= {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in more.items()}
    _log.info("audit %s", json.dumps(event, separators=(",", ":")))
