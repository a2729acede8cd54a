"""Training of EAGLE-3 drafters: prompts, the target's states, ModelOpt's module, checkpoints, export."""
