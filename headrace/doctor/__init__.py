"""What is wrong with a run, in plain sentences: a table of rules over what the run logged."""
