"""Mathematics on arrays: no logging, no randomness of its own, no file but the cache of kernels."""
