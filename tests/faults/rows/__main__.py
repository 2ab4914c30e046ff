"""One program of a row: `python -m tests.faults.rows r15_every_message --json`."""

import sys

from tests.faults.rows.program import main

sys.exit(main())
