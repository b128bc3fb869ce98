"""The sealed forms of a recording, one folder a format, behind one contract. Free of JAX."""
