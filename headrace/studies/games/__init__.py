"""Evaluates policies in solved games by exact best responses or minimax."""
