"""Games of several agents: adapters to columns, opponents and leagues."""
