"""Sections of the planner's report: each module has ``section(facts)`` and turns figures into tables and sentences."""
