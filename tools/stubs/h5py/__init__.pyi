# h5py ships no types, and what a checker infers from its sources is wrong: that `file["x"]` may be a type
# without a shape, for one. Everything of h5py is Any; our own functions say what they return.
from typing import Any

def __getattr__(name: str) -> Any: ...
