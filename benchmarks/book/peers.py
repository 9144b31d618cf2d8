"""The page peers of the results book."""

from __future__ import annotations

from book.page import Page

PAGE = Page("peers", "peers", source="", rows=(), experiments=())
