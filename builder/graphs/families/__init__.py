"""One module a family of decoders, found by the name that the decoder table's row gives: ``write(blocks)`` writes the
whole model's nodes, from input_ids to logits.

The residual stream after layer i is the value ``hidden_states_{i+1}`` (0: the embeddings) in each of them: drafts ask
for it by name.
"""
