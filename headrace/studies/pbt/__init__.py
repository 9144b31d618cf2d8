"""Population-based training, coordinated through a shared folder."""
