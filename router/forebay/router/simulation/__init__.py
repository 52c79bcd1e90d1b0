"""Engines, caches and agents on virtual time, to compare ways of routing over recorded workloads (pure)."""
