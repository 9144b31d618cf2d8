"""The page impala of the results book."""

from __future__ import annotations

from book.page import Page

PAGE = Page("impala", "impala", source="", rows=(), experiments=())
