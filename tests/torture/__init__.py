"""`make torture`: kills, damaged files, mangled settings and tables, odd arguments and clients' faults, counted."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "cli")]
