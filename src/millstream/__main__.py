"""`python -m millstream` is the `millstream` command."""

import sys

from millstream.cli.main import main

sys.exit(main())
