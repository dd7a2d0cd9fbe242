"""The local page: a server on this machine alone, and the same page as one file.

Importing this asks for neither starlette nor uvicorn; only `regard serve` does.
"""
