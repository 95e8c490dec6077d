"""What programs find below `net_queue.utils`."""
