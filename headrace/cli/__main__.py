"""``python -m headrace.cli`` is the command line, as ``python -m headrace`` is."""

import sys

from headrace.cli import main

sys.exit(main())
