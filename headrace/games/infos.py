"""Keys of the infos of a game's vector environment."""

from __future__ import annotations

ABSENT = "absent"  # of reset: [B] bool, columns without an agent
MOVED = "moved"  # of a step of a turn-based game: [B] bool, columns whose steps are done
AGENT_INFOS = "agent_infos"  # the info of each column, a list of dicts
