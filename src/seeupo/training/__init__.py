"""What is done with policies, environments and algorithms together: evaluation, and later the training loop."""
