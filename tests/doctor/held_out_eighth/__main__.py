"""The eighth held-out list: 20 faults and 20 healthy runs, by an author who had not read the detector or its tests.

    PYTHONPATH=src python tests/doctor/held_out_eighth [NAME ...] [--out FOLDER] [--faults | --healthy]
    PYTHONPATH=src python tests/doctor/held_out_eighth --effects        each fault's losses beside a sound run's

held_out_runner.py runs the cases. effects.md has what the faults do to their runs.
"""

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

from faults import FAULTS  # noqa: E402 (the path comes first)
from healthy import HEALTHY  # noqa: E402
from held_out_runner import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(FAULTS, HEALTHY, FOLDER, __doc__))
