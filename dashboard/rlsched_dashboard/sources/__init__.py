"""Everything that the dashboard reads, and what it does when it cannot."""
