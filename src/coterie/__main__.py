"""`python -m coterie` is the command."""

import sys

from coterie.cli.main import main

sys.exit(main())
