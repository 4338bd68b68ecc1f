"""Servers as state machines on their stores, and what runs them."""
