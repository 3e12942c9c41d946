"""The fault laboratory: parts that break Holdfast on purpose and check what is left. See docs/internals/faults.md."""
