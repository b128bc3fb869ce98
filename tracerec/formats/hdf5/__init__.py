"""Sealed traces as HDF5: what is in a file (`layout`, `types`, `codecs`), writing one, reading one.

Writing: `seal` takes any source, `merge` the parts of a recording; both write through `writing`. Reading: `reading` has
the streams of a file, of which `files` keeps the file open and `datasets` reads chunks.

``docs/format.md`` describes the file for people who read it without tracerec.
"""
