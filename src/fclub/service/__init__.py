"""The live federation."""
