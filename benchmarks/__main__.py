"""`python -m benchmarks NAME ...`."""

import sys

from benchmarks.run import main

sys.exit(main())
