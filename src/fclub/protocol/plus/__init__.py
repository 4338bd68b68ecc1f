"""Our own algorithm: soft clusters by a Bayesian mixture, released sums by user or cluster."""
