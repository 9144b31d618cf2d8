"""``headrace bench aaps``: what fetching weights on drift only saves."""
