"""Quality and speed measurements, their statistics, gates and reports."""
