"""Benchmarks of tracerec: `python -m tools.bench` runs them, `python -m tools.bench --list` names them."""
