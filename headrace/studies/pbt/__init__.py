"""Population-based training: members that meet in a folder."""
