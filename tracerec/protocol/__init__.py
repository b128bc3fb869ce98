"""The outfeed protocol: frames of header, metadata and arrays. Free of JAX."""
