"""What each engine has cached: prefix keys, the index of them, and the KV events that fill it."""
