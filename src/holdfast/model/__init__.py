"""The values that move through Holdfast. Pure data: no I/O, no threads, no clock."""
