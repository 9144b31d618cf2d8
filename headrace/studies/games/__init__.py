"""How good a policy is in games that are solved: by exact best responses, or minimax."""
