"""Files of ratings and visits: read, kept in the cache, turned into vectors."""
