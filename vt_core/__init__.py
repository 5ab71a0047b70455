"""Verifiable training: numerics, engine, training, evidence and verification.

This package is the library: torch, numpy and numba only. It knows nothing of Prefect, DVC or S3 (those are
adapters in ``tasks/``), which a test enforces.
"""

__version__ = "0.1.0"
