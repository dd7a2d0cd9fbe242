"""One claim a file: ``SAYS`` is its sentence, ``judge`` gives the verdict."""
