"""Runs the command line as ``python -m headrace.cli``, the same as ``python -m headrace``."""

import sys

from headrace.cli import main

sys.exit(main())
