"""Scores that can be compared between tasks: references, and what runs have of them."""
