"""Policies of one server that sees all visits, or of users that share nothing; the oracles."""
