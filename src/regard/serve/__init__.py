"""The local web page: a server on the loopback address, and the same page as one HTML file.

Only `regard serve` imports starlette and uvicorn.
"""
