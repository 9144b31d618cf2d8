"""Diagnoses problems of a run with a table of rules over its logged metrics."""
