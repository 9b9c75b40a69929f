"""Parts that several algorithms share: batches of turns, objectives, optimizer steps, records and cards."""
