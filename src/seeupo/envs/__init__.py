"""Environments that a policy acts in, in separate worker processes or in this process.

`pool.pool.EnvPool` runs episodes, `registry.EnvSpec` describes an environment, `failures` defines infrastructure
failures. Nothing is imported here, because workers import this package too and should start fast.
"""
