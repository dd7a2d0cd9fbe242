"""A text in which every token is its own position."""

TEXT = "".join(chr(0x100 + i) for i in range(1000))  # every character once
