"""The page clusterenv of the results book."""

from __future__ import annotations

from book.page import Page

PAGE = Page("clusterenv", "clusterenv", source="", rows=(), experiments=())
