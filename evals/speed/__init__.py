"""Speed: load generation, latency figures, the knee, and goodput under an SLO."""
