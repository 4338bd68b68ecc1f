"""The table of policies: each row names a learner, an exchange and their parameters."""
