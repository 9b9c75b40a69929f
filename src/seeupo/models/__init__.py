"""Language models as policies: loading, and exact log-probs of sampled tokens."""
