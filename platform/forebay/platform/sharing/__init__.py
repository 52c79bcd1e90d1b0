"""Load that front doors share, through Valkey: what each has booked on which endpoint."""
