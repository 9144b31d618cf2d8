"""Sweeps: settings that are drawn, trained, and ranked."""
