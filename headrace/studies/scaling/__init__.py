"""``headrace bench scaling``: what more learners bring."""
