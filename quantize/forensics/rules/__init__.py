"""The rules of the audit, a module for each part of a checkpoint; a module that lies here is registered."""
