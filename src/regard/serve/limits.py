"""Limits of the server: sizes, counts and timeouts."""

#: Bytes of a request body, and of the request headers.
BODY, HEADERS = 256 * 1024, 16 * 1024
#: Timeouts in seconds: receive a whole request, wait for a client to read, keep an idle connection open.
RECEIVE_TIMEOUT, SEND_TIMEOUT, KEEP_ALIVE = 5.0, 30.0, 15
#: Open connections, queued requests per worker, and event streams.
CONNECTIONS, QUEUED, STREAMS = 128, 32, 24
#: Cached traces, their total bytes, and loaded models.
TRACES, TRACE_BYTES, MODELS = 8, 2 * 2**30, 2
#: Tokens of the held-out passage that a view opens with.
PASSAGE = 48
#: Rows per metrics table, characters per sample, samples and findings per run.
ROWS, SAMPLE, SAMPLES, FINDINGS = 1000, 4000, 200, 500
#: Bytes at the end of metrics.jsonl that the list of runs is read from.
METRICS_TAIL = 256 * 1024
#: Bytes of all overview maps of a trace, and of the data in a file written by `regard look`.
OVERVIEW, FILE = 5_000_000, 16 * 2**20
