"""A custom environment and its test, which `seeupo envs new` copies."""
