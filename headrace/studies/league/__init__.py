"""What a league came to: ratings, pay-offs, and games of its snapshots."""
