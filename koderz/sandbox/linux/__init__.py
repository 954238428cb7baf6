"""The means of the Linux kernel to contain a process."""
