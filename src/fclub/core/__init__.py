"""Pure mathematics on arrays: no input or output, no logging, no randomness of its own."""
