"""Keys of the metadata and infos of games."""

from __future__ import annotations

GAME = "headrace_game"  # metadata of one game: its GameSpec
FLAGS = "agent_flags"  # info of one game: [4, n] bool, its rows as follows
TERMINATED, TRUNCATED, COMPLETE, OVER = range(4)
"""Rows of flags: an agent's episode ended, its step is complete, the game has no agents left."""
RETURNS = "returns"  # info of one turn-based game as it begins: [n] returns of the previous one

ABSENT = "absent"  # infos of a vector environment's reset: [B] bool, columns without an agent
MOVED = "moved"  # infos of a step of turn-based games: [B] bool, columns whose steps are complete
AGENT_INFOS = "agent_infos"  # infos of games: the info of each column, a list of dicts
