"""`python -m coterie` is the command."""

import sys

from coterie.cli import main

sys.exit(main())
