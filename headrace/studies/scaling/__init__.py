"""``headrace bench scaling``: benchmark of training speed against the number of learners."""
