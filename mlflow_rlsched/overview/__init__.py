"""What there is to see: shared by the commands and the dashboard, which only show it."""
