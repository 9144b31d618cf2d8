"""How a run is evaluated while it trains and at its end."""
