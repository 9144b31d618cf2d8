"""``headrace bench aaps``: benchmark of adaptive weight synchronisation."""
