"""What several learners do together: sums, and cutting stragglers short."""
