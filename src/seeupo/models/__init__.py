"""Language models as policies: loading, and exact log-probs of the tokens that were sampled."""
