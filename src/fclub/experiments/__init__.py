"""Experiments: specifications, the parallel runner, plots and reports."""
