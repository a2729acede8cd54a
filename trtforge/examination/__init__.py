"""What `trtforge doctor` looks at: the host, and the engines that load there."""
