"""What the page and `regard look` show of one model and text."""
