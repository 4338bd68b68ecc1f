"""Policies: the table of federated ones, the baselines and the oracles."""
