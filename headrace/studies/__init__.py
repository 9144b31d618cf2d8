"""Guests of the engine: what it brings, how fast it will be. Nothing else imports them."""
