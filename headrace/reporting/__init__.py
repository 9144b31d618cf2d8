"""A run, or several, as one page: ``report.html``, and the same while it goes on."""
