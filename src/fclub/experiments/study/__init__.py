"""Studies: the figures of the paper and ours as experiments, run into one folder."""
