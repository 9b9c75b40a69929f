"""Pure tensor mathematics: no files, no models, no hidden randomness."""
