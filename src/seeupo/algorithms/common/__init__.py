"""Parts that several algorithms share: batches of turns, objectives, optimizer steps, and records."""
