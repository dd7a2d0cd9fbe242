"""`python -m regard` is `regard`."""

import sys

from regard.cli import entry

sys.exit(entry())
