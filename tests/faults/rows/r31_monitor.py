"""Row 31: wiring slips and lies of drafters are found by the monitor; the program is `benchmarks.monitor`."""

import sys

from benchmarks.monitor import main

if __name__ == "__main__":
    sys.exit(main([word for word in sys.argv[1:] if word != "--long"]))
