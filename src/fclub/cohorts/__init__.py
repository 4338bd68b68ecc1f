"""Sums that nobody sees alone: docs/specification/cohorts.md."""
