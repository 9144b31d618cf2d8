"""How processes end: at Ctrl-C, and with all that they have started."""
