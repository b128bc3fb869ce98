"""What to keep of a tapped leaf: the whole, or something smaller that the device makes of it. Free of JAX.

A `Keep` says what; its ``parts`` name the arrays that it makes, in order. A record holds one array a part: the
record's lane axes first, then the part's own. The docstring of each kind fixes the layout of its parts, which is
what goes to disk. `tracerec.tapping.reductions` computes them; the functions here read them, or compute the same
of whole arrays.
"""

from tracerec.keeping.bins import exponent_of, histogram_edges
from tracerec.keeping.digests import fingerprint, fingerprint_seed
from tracerec.keeping.parsing import WORDS, from_json, parse
from tracerec.keeping.positions import sample_positions
from tracerec.keeping.specs import (
    COUNTED,
    MOMENTS,
    OUTSIDE,
    Cast,
    Fingerprint,
    Full,
    Function,
    Histogram,
    Keep,
    Norms,
    Quantiles,
    Sample,
    Slice,
    Summary,
    TopK,
)
from tracerec.keeping.summaries import MORE_MEASURES, summary_columns

__all__ = [
    "COUNTED",
    "MOMENTS",
    "MORE_MEASURES",
    "OUTSIDE",
    "WORDS",
    "Cast",
    "Fingerprint",
    "Full",
    "Function",
    "Histogram",
    "Keep",
    "Norms",
    "Quantiles",
    "Sample",
    "Slice",
    "Summary",
    "TopK",
    "exponent_of",
    "fingerprint",
    "fingerprint_seed",
    "from_json",
    "histogram_edges",
    "parse",
    "sample_positions",
    "summary_columns",
]
