"""League results: ratings, pay-offs, and games between snapshots."""
