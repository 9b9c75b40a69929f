"""Environments: worlds that a policy acts in, in worker processes of their own or in this one.

`pool.EnvPool` runs episodes, `registry.EnvSpec` describes an environment, `failures` says what can go wrong. Nothing
is imported here, because workers import this package too and should start fast.
"""
