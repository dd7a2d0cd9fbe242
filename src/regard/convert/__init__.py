"""Foreign checkpoints: read as data, never run, and rebuilt from this library's own parts."""

from regard.convert.g2p import Pronouncer, read_g2p
