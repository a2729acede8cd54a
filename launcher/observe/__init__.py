"""What a monitoring system needs to watch a served bundle: what to scrape, when to call somebody, and a board."""
