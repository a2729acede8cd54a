"""Speculation held against the same engine without it: equal answers, equal distribution, what is gained."""
