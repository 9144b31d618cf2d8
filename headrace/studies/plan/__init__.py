"""What a run will take before it is started: arithmetic, measured costs, a simulation."""
