"""What a run says of itself: results, files, the terminal, pictures, checkpoints."""
