"""What the Linux kernel offers to contain a process."""
