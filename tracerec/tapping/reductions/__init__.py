"""What the device makes of a leaf before anything is copied: the arithmetic of `tracerec.keeping`.

How it is made quick. XLA's CPU compiler turns several reductions of one array into slow scalar code, unless all of
them are integers: sums, minima and maxima of integers may be taken in any order, so one reduction with many operands
is a vectorised pass. Floats have order-preserving integers for bits: the exact range, all counts and the digest are
one such pass (`counting`). What remains are plain sums of floats, which XLA has fast kernels for; in the rare case
that elements are not finite or that squares would leave float32's range, a branch takes sums with masks and scales
(`measuring`).

Nothing here has effects, and no 64-bit type appears unless the leaf is of one.
"""

from tracerec.tapping.reductions.reducing import reduce, reduce_parts

__all__ = ["reduce", "reduce_parts"]
