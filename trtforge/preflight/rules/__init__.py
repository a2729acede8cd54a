"""The rules, one module a subject. Codes are ``TF-K<kind>-<number>`` and are never reused."""
