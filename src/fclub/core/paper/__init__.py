"""The arithmetic of the printed algorithm: confidence radii, rounds, uploads and downloads."""
