"""The federation as plain objects and messages; no input or output."""
