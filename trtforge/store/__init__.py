"""The artifact store: content keys, two-phase publishing, locks, garbage collection, verification."""
