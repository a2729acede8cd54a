"""What this machine is: processor, memory, GPUs, Python and C library; one record, read in one place each."""
