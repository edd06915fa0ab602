"""The entry point of the command `millstream`.

`serve` and `container` have a fast path that imports only what the broker needs: typer, rich and confluent-kafka take
longer to import than the broker takes to start. So has `kafka-script`, which health checks call every few seconds.
Arguments that the fast path does not understand (help, a typo, completion) go to typer.
"""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["serve"]:
        from millstream.cli.serve import parse, run

        options = parse(arguments[1:])
        if options is not None:
            return run(options)
    if arguments[:1] == ["container"] and "--help" not in arguments and "-h" not in arguments:
        from millstream.cli import container

        return container.run(arguments[1:])
    if arguments[:1] == ["kafka-script"] and arguments[1:2] not in (["--help"], ["-h"]):
        from millstream.cli import kafka_scripts

        return kafka_scripts.run(arguments[1:])
    from millstream.cli.app import run_app

    return run_app(arguments)
