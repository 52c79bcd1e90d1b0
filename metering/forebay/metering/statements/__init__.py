"""What a tenant owes for a period, line by line."""
