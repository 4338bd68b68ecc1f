"""Policies whose servers or users exchange something."""
