"""The page lesson of the results book."""

from __future__ import annotations

from book.page import Page

PAGE = Page("lesson", "lesson", source="", rows=(), experiments=())
