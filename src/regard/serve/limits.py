"""How much anybody may ask of the server, in one place."""

#: Bytes of a request's body, and of its headers.
BODY, HEADERS = 256 * 1024, 16 * 1024
#: Seconds for a whole request to arrive, for a client to take what was sent, and until an idle connection is closed.
ARRIVE, TAKE, IDLE = 5.0, 30.0, 15
#: Connections, requests waiting for one worker, and streams of events.
CONNECTIONS, WAITING, STREAMS = 128, 32, 24
#: Tokens of a text, traces kept in memory with the bytes they may hold together, and models kept loaded.
TOKENS, TRACES, TRACE_BYTES, MODELS = 8192, 8, 2 * 2**30, 2
#: Rows of a curve that are sent, characters of a sample and how many of them, and findings.
ROWS, SAMPLE, SAMPLES, FINDINGS = 2000, 4000, 200, 500
#: Bytes at the end of a run's records that its line in the list is read from.
LAST = 256 * 1024
#: Bytes of the file that `regard look` writes, beyond the page itself.
FILE = 16 * 2**20
