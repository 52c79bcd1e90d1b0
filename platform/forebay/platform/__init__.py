"""The front door: the API that tenants see, tenancy, the relay, and the command line over all rooms."""
