"""Start, probe, drain and stop servers."""
