"""A federation of organisations on paper: its authority, its broker's accounts, and a kit for each."""
