"""The command line: every command parses, calls one function, prints."""
