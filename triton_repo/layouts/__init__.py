"""Repository layouts, one module each."""
