"""Reads a recording of ``digits.py`` back with pandas; jax is not imported.

Usage::

    python examples/readback.py run.h5
"""

from __future__ import annotations

import sys

import pandas as pd

import tracerec


def main(path: str) -> None:
    """Prints three tables: the loss, the layers' activations and cotangents, the gradients."""
    pd.set_option("display.width", 110, "display.precision", 4)
    with tracerec.open(path) as trace:
        # A tap with one array a record is one numpy array, the record first.
        loss = pd.DataFrame({"step": trace["loss"].steps, "loss": trace["loss"].to_numpy()})
        print(f"\nloss\n{by_fifties(loss).pivot_table('loss', 'steps')}")

        # A table has a row for each record and leaf, with the kwargs and some statistics as columns.
        act = by_fifties(trace["encoder/act"].to_pandas())
        spread = act.pivot_table("std", "steps", ["transforms", "layer"])
        print(f"\nencoder/act: standard deviation in each layer; jvp, transpose is its cotangent\n{spread}")

        grads = by_fifties(trace["grads"].to_pandas())
        print(f"\ngrads: l2 norm of each leaf\n{grads.pivot_table('l2', 'steps', 'leaf').T}")


def by_fifties(table: pd.DataFrame) -> pd.DataFrame:
    """Adds a column ``steps``: the first of the fifty steps that each row is among."""
    return table.assign(steps=table["step"] // 50 * 50)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "run.h5")
