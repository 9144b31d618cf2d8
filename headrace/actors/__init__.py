"""Rollouts: the hot loop, the actor around it, its processes, and when it fetches weights."""
