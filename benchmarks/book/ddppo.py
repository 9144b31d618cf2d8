"""The page ddppo of the results book."""

from __future__ import annotations

from book.page import Page

PAGE = Page("ddppo", "ddppo", source="", rows=(), experiments=())
