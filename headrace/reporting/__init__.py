"""Reports of one or several runs as an HTML page, also live during training."""
