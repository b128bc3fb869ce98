"""Whether a recording is intact: every named invariant, checked. Free of JAX; the way in is `verify`."""

from tracerec.verifying.invariants import INVARIANTS as INVARIANTS
from tracerec.verifying.report import Fault as Fault
from tracerec.verifying.report import Verification as Verification
from tracerec.verifying.verify import verify as verify

__all__ = ["INVARIANTS", "Fault", "Verification", "verify"]
