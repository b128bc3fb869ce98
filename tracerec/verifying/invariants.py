"""What holds of every intact recording, by name. ``docs/format.md`` lists the same; a test holds it to this list."""

from __future__ import annotations

__all__ = ["INVARIANTS", "of_form"]

INVARIANTS: dict[str, str] = {
    # files
    "readable": "Every file can be opened, and is what its name and its place say.",
    "stays-inside": "Nothing leads out of the recording: no link, virtual dataset, external storage or foreign filter.",
    "run-described": "The run's description is there, and has the members of its schema.",
    "streams-listed": "The list of streams names every stream that is there, once, and no other.",
    "processes-listed": "The list of a merged recording names every process that is there, once, and no other.",
    # checksums
    "frame-checksum": "Every byte of a segment is in a frame whose checksum is right, up to the end that a kill tore.",
    "chunk-checksum": "Chunks and lists of an HDF5 file have the checksums that it keeps of them (since version 1.2).",
    "chunk-whole": "Every chunk and record batch is there, and decompresses to exactly the bytes of its records.",
    "file-checksum": "Every file of an Arrow folder has the size and the checksum that the folder keeps of it.",
    # a journal's order
    "segment-sequence": "Segments and parts are numbered without a hole, and each is the one that its name says.",
    "part-manifest": "Parts and segments are of the run and the form that the manifest names.",
    "frame-order": "A segment begins by saying which one it is, and nothing follows the frame that ends an attempt.",
    "frame-arrays": "The arrays of a frame are those of its site, one row a record.",
    "site-defined": "Every stream, and every frame before it, has its site's definition, in the same segment or file.",
    "site-id": "A site's id is the digest of its definition; copies of a definition are equal.",
    # what is declared
    "shape-declared": "Arrays have the shapes and the types that their site declares.",
    "size-declared": "Rows and bytes are as many as the lists of streams and the manifest declare, where they declare.",
    "index-count": "A record has one row of the index table, and one of each leaf and each stored kwarg.",
    "attempts-ordered": "Attempts are listed in order, and every record belongs to one.",
    # records
    "arrival-monotone": "In a stream, arrival numbers rise from record to record (since version 1.2).",
    "arrival-unique": "No two records of a recording have the same arrival number.",
    "number-monotone": "The numbers of one device's records rise with their arrival numbers, in each attempt.",
    "dtype-valid": "Elements are values of their type: bools are 0 or 1, types below a byte have no bits above it.",
    # what is stored twice
    "summary-true": "The stored summaries are those of the records.",
    "steps-true": "The smallest and the largest step that are listed are those of the records.",
    "counts-true": "The run's count of records is how many there are.",
}
"""A sentence for each invariant. Names are stable: programs read them."""

_EVERYWHERE = (
    "readable",
    "stays-inside",
    "run-described",
    "site-defined",
    "shape-declared",
    "index-count",
    "attempts-ordered",
    "arrival-monotone",
    "arrival-unique",
    "number-monotone",
    "dtype-valid",
)
_SEALED = (
    "streams-listed",
    "processes-listed",
    "site-id",
    "chunk-whole",
    "size-declared",
    "summary-true",
    "steps-true",
    "counts-true",
)
_HDF5 = (*_EVERYWHERE, *_SEALED, "chunk-checksum")
_ARROW = (*_EVERYWHERE, *_SEALED, "file-checksum")
_FOLDER = ("segment-sequence", "part-manifest")
_JOURNAL = (*_EVERYWHERE, *_FOLDER, "frame-checksum", "frame-order", "frame-arrays", "site-id")


def of_form(*forms: str) -> tuple[str, ...]:
    """Returns the invariants that are checked in recordings of these forms, in the order of `INVARIANTS`.

    Args:
        forms: ``"hdf5"``, ``"arrow"``, ``"journal"`` (segments) and ``"folder"`` (the folder around parts).
    """
    by_form = {"hdf5": _HDF5, "arrow": _ARROW, "journal": _JOURNAL, "folder": (*_FOLDER, "counts-true")}
    checked = {name for form in forms for name in by_form[form]}
    return tuple(name for name in INVARIANTS if name in checked)
