"""Studies of many runs: the resumable table that they share, and ``headrace bench scaling``."""
