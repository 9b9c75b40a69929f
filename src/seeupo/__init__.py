"""SeeUPO: train language-model agents over many turns by sequence-level sequential policy updates."""

__version__ = "0.1.0"
