"""Where a cluster's workers run: one file per scheduler."""
