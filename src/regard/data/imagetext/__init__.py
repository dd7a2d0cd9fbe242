"""Images with texts about them."""
