"""One model for all users of all servers: each server is one stream, whoever its users are."""
