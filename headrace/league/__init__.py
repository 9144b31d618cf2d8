"""Self-play: opponents of the trained seats, and the results of games against them."""
