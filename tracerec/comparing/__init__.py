"""Two traces: which records belong together, how much they differ, and where it began. Free of JAX."""

from __future__ import annotations

from tracerec.comparing.comparison import Comparison
from tracerec.comparing.divergence import Divergence
from tracerec.comparing.growth import Growth
from tracerec.comparing.tolerances import Tolerance, defaults_text
from tracerec.comparing.unmatched import Unmatched
from tracerec.comparing.walk import compare

__all__ = ["Comparison", "Divergence", "Growth", "Tolerance", "Unmatched", "compare", "defaults_text"]
