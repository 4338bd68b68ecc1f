"""The arithmetic of our own model: evidence, the mixture over partitions, a user's round."""
