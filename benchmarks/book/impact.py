"""The page impact of the results book."""

from __future__ import annotations

from book.page import Page

PAGE = Page("impact", "impact", source="", rows=(), experiments=())
