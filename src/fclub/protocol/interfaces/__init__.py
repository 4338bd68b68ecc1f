"""What a server is made of: a learner, an exchange, and jobs beside serving."""
