"""`regard` as a process that gets signals."""

import sys

#: `regard`, also where Ctrl-C was turned off for whatever started the tests.
REGARD = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from regard.cli import entry; entry()",
]
