"""Is a served bundle well: its server lives, its model is ready, and it says what was recorded when it was tested."""
