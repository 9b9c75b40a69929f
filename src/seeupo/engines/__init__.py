"""Engines, which compute log-probs and optimizer steps, and samplers."""
