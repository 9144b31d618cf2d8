"""What a setting may be: ranges of numbers, and checks of fields by their annotations."""
