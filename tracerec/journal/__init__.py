"""On disk, live: segments of frames, appended to while the run goes on. Free of JAX."""
