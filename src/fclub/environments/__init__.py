"""Environments: where visits and rewards come from."""
