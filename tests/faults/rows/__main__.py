"""One program of a row: `python -m faults.rows r15_every_message --json`."""

import sys

from faults.rows.program import main

sys.exit(main())
