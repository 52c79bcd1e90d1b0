"""A Stripe of our own on a loopback address. It is our reading of Stripe: what is true of it need not be of Stripe.

Requests are checked against stripe-python's own types of parameters; the rules are those of docs/stripe.md.
"""
