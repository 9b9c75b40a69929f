"""What is done with policies, environments and algorithms together: training and evaluation."""
