"""Experiments: what one is, where it runs, where its results are kept."""
