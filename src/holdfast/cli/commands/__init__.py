"""The commands, a file each or one for a family."""
