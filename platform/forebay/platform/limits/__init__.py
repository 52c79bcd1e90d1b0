"""Rate limits and concurrency of keys, projects and tenants, shared by all front doors through Valkey."""
