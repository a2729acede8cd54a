"""What is loaded on this machine against what a row of the stack table says."""
