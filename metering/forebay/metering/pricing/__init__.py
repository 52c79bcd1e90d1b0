"""What tenants are charged beside the catalogue's prices: overrides of their own and plans."""
