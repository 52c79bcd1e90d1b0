"""A front door of several processes: workers that serve on one socket, and a router process that starts them."""
