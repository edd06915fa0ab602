"""The entry point of `millstream`.

`serve` takes a short way that imports nothing but what the broker needs: typer, rich and confluent-kafka together cost
more time than the broker's whole start. Whatever the short way does not understand (help, a typo, completion) goes the
long way, which explains itself.
"""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["serve"]:
        from millstream.cli.serve import parse, run

        options = parse(arguments[1:])
        if options is not None:
            return run(options)
    from millstream.cli.app import run_app

    return run_app(arguments)
