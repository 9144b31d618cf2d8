"""The page impala of the results book."""

from __future__ import annotations

from book import impala_runs
from book.page import Page

EXPERIMENTS = impala_runs.EXPERIMENTS
PAGE = Page("impala", "IMPALA", source="", rows=(), experiments=EXPERIMENTS)
