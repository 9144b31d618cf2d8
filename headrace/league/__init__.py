"""Self-play: who plays the seats of a game that aren't trained, and what comes of it."""
