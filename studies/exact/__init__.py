"""Engine for problems small enough to enumerate, so that expectations are exact sums."""

from studies.exact.exact_engine import ExactEngine
from studies.exact.policy import NetworkPolicy, TablePolicy
from studies.exact.problem import Problem
from studies.exact.updates import GradientAscent, Maximizer, TrustRegion

__all__ = ["ExactEngine", "GradientAscent", "Maximizer", "NetworkPolicy", "Problem", "TablePolicy", "TrustRegion"]
