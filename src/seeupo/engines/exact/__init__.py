"""Engine for problems small enough to enumerate, so that expectations are exact sums."""

from seeupo.engines.exact.engine import ExactEngine
from seeupo.engines.exact.policy import NetworkPolicy, TablePolicy
from seeupo.engines.exact.problem import Problem
from seeupo.engines.exact.updates import GradientAscent, Maximizer, TrustRegion

__all__ = ["ExactEngine", "GradientAscent", "Maximizer", "NetworkPolicy", "Problem", "TablePolicy", "TrustRegion"]
