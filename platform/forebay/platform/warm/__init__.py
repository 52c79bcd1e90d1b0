"""How a router that starts knows what its engines hold: from a peer, or from what it wrote down when it stopped."""
